"""Rules of wiring, as tests: parts get what they need by constructors, services have types, importing changes no state
of the process, every function has a caller."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collected import no_garbage_collection
from tidelog.broker.requests.registry import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("protocol", "log", "cleaner", "broker", "tidelog", "pipeline", "pyspark_tidelog")
MODULES = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py")) if not path.is_symlink()]

# What sets state of the whole process: "path: expression" -> why it is not in a process's start.
PROCESS_STATE = re.compile(
    r"^(sys\.setswitchinterval|gc\.(freeze|disable|enable|set_threshold)|os\.(umask|nice|putenv|chdir)|os\.environ\.\w+|signal\.signal)$"
)
PROCESS_STATE_ALLOWED = {
    "broker/startup.py": "the broker's start",
    "tidelog/cli.py": "the process of a command, as it starts",
    "tidelog/commands/running/serve_process.py": "the process of `tidelog serve`, as it starts",
    "tidelog/commands/files/adopt.py": "the process of `tidelog adopt`, as it starts",
    "tidelog/commands/records/consume.py": "the process of a member of a group, as it starts",
    "tidelog/commands/pipeline.py": "the process of an export that goes on until a signal, as it starts",
    "pipeline/jobs/runner.py": "the process of a Spark job, as it starts",
    "log/records/quiet_import.py": "imports of numpy while a broker serves: collections wait for their end",
    "broker/metadata/bootstrap.py": "the process of `tidelog format`, for the one file that holds keys",
    "tidelog/development_cluster/run.py": "the process of `tidelog cluster start`, as it stops its nodes",
}
READS_OF_ENVIRONMENT = {"get", "items", "copy"}

SYS_MODULES_ALLOWED = {
    "broker/loop/thread_rule.py": "the debug check wraps modules, also those that are imported already",
    "broker/loop/late_imports.py": "a module that is imported already needs no thread",
    "protocol/record/crc.py": "takes the package if another has imported it; its own import costs 64 ms of the start",
}

# Attributes that are set from outside although they take a function: "path: attribute" -> why.
HOOKS_ALLOWED = {
    "broker/network/authentication.py: on_close": "the state of a connection, not a part of the broker",
    "broker/loop/timers.py: callback": "a timer and its queue are one module",
    "broker/coordinator/runtime/runtime.py: wake_up": "a shard is built around its timer before the runtime arms it",
    "broker/requests/throttling.py: withdraw": "the state of a connection, not a part of the broker",
    "broker/handlers/share_fetch.py: withdraw": "the state of a connection, not a part of the broker",
    "broker/share/share_groups.py: on_close": "the state of a connection, not a part of the broker",
}
DECLARED_ANY = {
    "broker/security/tls/principal_rules.py: pattern": "compiled by RE2, which has no types",
    "broker/security/sasl/kerberos/rules.py: pattern": "compiled by RE2, which has no types",
    "broker/security/sasl/kerberos/rules.py: old": "compiled by RE2, which has no types",
    "broker/loop/deferred.py: _value": "None as long as there is none",
    "broker/schema_registry/compatibility/json_schema.py: node": "JSON of any form",
    "broker/schema_registry/compatibility/json_schema.py: document": "JSON of any form",
    "broker/coordinator/runtime/result.py: key": "the schema of a record, one of each coordinator's",
    "broker/coordinator/runtime/result.py: value": "the schema of a record, one of each coordinator's",
}


LOG_LENT_TO = {
    "broker/find/finding.py": "looks up records in a worker, below the high watermark that it takes from the log",
    "broker/find/indexing.py": "the index thread works on a replica's files under any leader",
    "broker/find/virtual_topics.py": "a virtual partition reads the log of the real one, below its high watermark",
}
"""Modules outside of ``broker/replica`` that take the log of a partition."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


TREES: dict[str, ast.Module] = {}
"""Trees of all modules while the tests of this module run: half a gigabyte, which no other worker is to hold."""


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Parse all modules, and forget the trees at the end."""
    with no_garbage_collection():
        TREES.update((relative(path), tree_of(path)) for path in MODULES)
        NODES.update((id(tree), list(ast.walk(tree))) for tree in TREES.values())
    yield
    NODES.clear()
    TREES.clear()


NODES: dict[int, list[ast.AST]] = {}
"""The nodes of each tree, by its id: six rules look at all of them, and a walk costs more than a rule."""


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    return NODES[id(tree)]


def attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    return (node for node in nodes_of(tree) if isinstance(node, ast.Attribute))


def places(found: Iterator[tuple[str, ast.AST]], allowed: dict[str, str]) -> list[str]:
    """Return the places that are not allowed, and the exceptions that are not needed any more."""
    lines: dict[str, int] = {place: getattr(node, "lineno", 0) for place, node in found}
    stale = [f"{place}: not needed as an exception any more" for place in allowed if place not in lines]
    return [f"{place} (line {line})" for place, line in lines.items() if place not in allowed] + stale


def test_state_of_the_process_is_set_where_a_process_starts() -> None:
    def found() -> Iterator[tuple[str, ast.AST]]:
        for path, tree in TREES.items():
            for node in nodes_of(tree):
                if isinstance(node, ast.Call) and _sets_process_state(ast.unparse(node.func)):
                    yield path, node
                if isinstance(node, ast.Subscript) and _sets_variable(node):
                    yield path, node

    assert places(found(), PROCESS_STATE_ALLOWED) == []


def _sets_variable(node: ast.Subscript) -> bool:
    return ast.unparse(node.value) == "os.environ" and not isinstance(node.ctx, ast.Load)


def _sets_process_state(name: str) -> bool:
    return bool(PROCESS_STATE.match(name)) and name.removeprefix("os.environ.") not in READS_OF_ENVIRONMENT


def test_modules_and_attributes_are_found_by_name() -> None:
    """``sys.modules`` and ``__dict__`` tell what happens to be there, not what was wanted."""

    def found() -> Iterator[tuple[str, ast.AST]]:
        for path, tree in TREES.items():
            for node in attributes(tree):
                if node.attr == "__dict__" or ast.unparse(node) == "sys.modules":
                    yield path, node

    assert places(found(), SYS_MODULES_ALLOWED) == []


def test_attributes_of_broker_parts_have_types() -> None:
    def found() -> Iterator[tuple[str, ast.AST]]:
        for path, tree in TREES.items():
            for owner in nodes_of(tree):
                if path.startswith("broker/") and isinstance(owner, ast.ClassDef):
                    for name, annotation in _declared(owner):
                        if ast.unparse(annotation) in {"Any", "object", "Any | None"}:
                            yield f"{path}: {name}", annotation

    assert places(found(), DECLARED_ANY) == []


def _declared(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield target.attr, node.annotation
            elif isinstance(target, ast.Name) and node in owner.body:
                yield target.id, node.annotation


def test_no_function_is_put_into_an_object_from_outside() -> None:
    """A part of the broker gets what it needs by its constructor. Data that changes is another matter."""
    hooks = {
        name
        for tree in TREES.values()
        for owner in nodes_of(tree)
        if isinstance(owner, ast.ClassDef)
        for name, annotation in _declared(owner)
        if "Callable" in ast.unparse(annotation)
    } - {name for path, tree in TREES.items() if path.startswith("protocol/messages/") for name in _fields(tree)}

    def found() -> Iterator[tuple[str, ast.AST]]:
        for path, tree in TREES.items():
            if path.startswith("broker/"):
                for target, value in _assignments(tree):
                    if target.attr in hooks or _is_function(value):
                        yield f"{path}: {target.attr}", target

    assert places(found(), HOOKS_ALLOWED) == []


def _fields(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a message's fields."""
    for owner in nodes_of(tree):
        if isinstance(owner, ast.ClassDef):
            for node in owner.body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _assignments(tree: ast.Module) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Yield attributes of others than ``self`` and ``cls``, with what is assigned."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign):
            for assigned in node.targets:
                for target in assigned.elts if isinstance(assigned, ast.Tuple) else [assigned]:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in {"self", "cls"}:
                        yield target, node.value


def _is_function(value: ast.expr) -> bool:
    return isinstance(value, ast.Lambda) or (isinstance(value, ast.Call) and ast.unparse(value.func) == "partial")


# -- a caller for each thing


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", ["messages", "coordinator_records", "metadata_records"])
def test_every_message_has_a_user(room: str) -> None:
    used = {name for tree in TREES.values() for name in imported_modules(tree)}
    declared = {path.stem for path in (ROOT / "protocol" / room).glob("*.py")} - {"__init__"}
    unused = {name for name in declared if f"tidelog.protocol.{room}.{name}" not in used}
    assert unused == set(), "a message comes with the handler or the client that uses it"


def test_a_partition_is_the_door_to_its_log() -> None:
    """Leadership, epochs and what a reader may see are checked there, once for everyone."""
    through = {
        path
        for path, tree in TREES.items()
        for node in attributes(tree)
        if node.attr in {"local_log", "_log"} and ast.unparse(node.value) != "self" and path.startswith("broker/")
    }
    assert {path for path in through if not path.startswith("broker/replica/")} == set(LOG_LENT_TO)


def test_every_handler_is_registered() -> None:
    handlers = {path.stem for path in (ROOT / "broker" / "handlers").glob("*.py")}
    with_api = {name for name in handlers if "handle" in _functions(f"broker/handlers/{name}.py")}
    assert with_api == {entry.module.rpartition(".")[2] for entry in REGISTRY.values()}


def _functions(path: str) -> set[str]:
    return {node.name for node in TREES[path].body if isinstance(node, ast.FunctionDef)}


def test_every_counter_and_histogram_is_recorded() -> None:
    """A metric that is declared and never touched reads zero for good, which looks like an answer."""
    kept = {
        target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
        for path, tree in TREES.items()
        if path.startswith("broker/")
        for node in nodes_of(tree)
        if isinstance(node, ast.Assign) and _makes_metric(node.value)
        for target in node.targets
    }
    recorded = r"\b{}(\.count \+=|\.record\(|\[)|= \S*\b{}$"
    text = "\n".join(path.read_text() for path in MODULES if relative(path).startswith("broker/"))
    silent = {name for name in kept if not re.search(recorded.format(name, name), text, re.M)}
    assert kept
    assert silent == set()


def _makes_metric(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith((".counter", ".histogram"))
