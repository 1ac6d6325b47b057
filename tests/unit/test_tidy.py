"""The repository's own rules, as tests: sizes, module docstrings, broad excepts, relative and bare package imports."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "log", "cleaner", "broker", "tidelog", "pipeline", "benchmarks")
MAX_FUNCTION_LINES = 70
MAX_MODULE_LINES = 700
MAX_CLASS_METHODS = 20
MAX_LOOSE_MODULES = 14
# Packages that hold one module for each of many things of a kind.
WIDE_PACKAGES = {
    "broker/handlers": "one module for each API",
    "protocol/messages": "one module for each API",
    "benchmarks": "one module for each section, and what they share",
}
# The only places that may catch everything: the dispatcher with its steps, answers and connections (unknown errors
# become UNKNOWN_SERVER_ERROR, or close the connection) and the cleaner's supervision (a dying round quarantines its
# partition).
BROAD_EXCEPT_ALLOWED = {
    "broker/loop/deferred.py",
    "broker/loop/steps.py",
    "broker/network/connection.py",
    "broker/requests/dispatch.py",
    "broker/requests/route.py",
    "cleaner/log_cleaner.py",
}
# Classes whose whole job is one wide surface, each with its reason.
WIDE_CLASSES = {
    "log/unified_log.py:UnifiedLog": "the log as everyone meets it; its work is in the modules it calls",
    "log/segment/segment.py:LogSegment": "four files as one: appends, reads, rolls, cuts, names",
    "broker/coordinator/runtime/runtime.py:CoordinatorRuntime": "shards of a topic: found, loaded, written, answered",
    "broker/replica/partition.py:Partition": "the only door to a log: appends, reads, offsets, leadership",
    "protocol/record/record_batch.py:RecordBatch": "one property per header field",
}

# Riddles and old-fashioned words in English, and first words of docstrings that do not say what a thing is.
BANNED_WORDS = re.compile(r"\b(anew|nobody|somebody|everybody|whoever|for ever|be it)\b", re.IGNORECASE)
BANNED_BEGINNINGS = re.compile(
    r"(What|Who|Whose|How|Where|Whether|Which|As|So many|So much|See the module)\b", re.IGNORECASE
)
PROSE_FOLDERS = (*PACKAGES, "pyspark_tidelog", "tests")
MAX_SENTENCE_WORDS = 28
SENTENCE_FOLDERS = (*PROSE_FOLDERS, "docs")
THROUGH_OTHERS = Path(__file__).with_name("tested_through_others.txt")
"""Modules that only tests of their neighbours run; the list may only become shorter."""


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


MODULES = [path for path in modules() if "build" not in path.parts]


PACKAGE_FOLDERS = sorted({path.parent for path in MODULES})


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_module_is_small_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_MODULE_LINES, f"{relative(path)} is longer than {MAX_MODULE_LINES} lines"
    assert ast.get_docstring(ast.parse(text)), f"{relative(path)} has no module docstring"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_functions_and_classes_are_small(path: Path) -> None:
    tree = tree_of(path)
    long = [f.name for f in functions(tree) if (f.end_lineno or f.lineno) - f.lineno + 1 > MAX_FUNCTION_LINES]
    assert not long, f"{relative(path)}: functions over {MAX_FUNCTION_LINES} lines: {long}"
    wide = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and f"{relative(path)}:{node.name}" not in WIDE_CLASSES
        and sum(_is_method(member) for member in node.body) > MAX_CLASS_METHODS
    ]
    assert not wide, f"{relative(path)}: classes over {MAX_CLASS_METHODS} methods: {wide}"


def _is_method(member: ast.stmt) -> bool:
    """Properties are attributes with a body: they do not count."""
    if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    names = {d.id for d in member.decorator_list if isinstance(d, ast.Name)}
    return not names & {"property", "cached_property", "overload"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_everything_is_caught_only_where_it_may_be(path: Path) -> None:
    if relative(path) in BROAD_EXCEPT_ALLOWED:
        return
    broad = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}))
        and not _raises_on(node)
    ]
    assert not broad, f"{relative(path)}: broad except at lines {broad}"


def _raises_on(handler: ast.ExceptHandler) -> bool:
    """Cleaning up and raising on swallows nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_packages_with_common_names_are_imported_by_module(path: Path) -> None:
    bare = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Import)
        and any(alias.name in {f"tidelog.{name}" for name in PACKAGES[:4]} for alias in node.names)
    ]
    assert not bare, f"{relative(path)}: import a module of the package, never the package: lines {bare}"


@pytest.mark.parametrize("folder", PACKAGE_FOLDERS, ids=relative)
def test_a_package_can_be_looked_over(folder: Path) -> None:
    loose = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(loose) <= MAX_LOOSE_MODULES or relative(folder) in WIDE_PACKAGES, f"{len(loose)} modules: {loose}"


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module; of a package also its other texts, which a user may read."""
    text = path.read_text()
    docstrings = {node.lineno for node in _docstrings(ast.parse(text))}
    is_test = relative(path).startswith("tests/")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type == tokenize.STRING and (token.start[0] in docstrings or not is_test)
        if is_text or token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first


@pytest.mark.parametrize("folder", PROSE_FOLDERS)
def test_words_are_plain(folder: str) -> None:
    found = [
        f"{relative(path)}:{number}: {text.strip()[:100]}"
        for path in prose_modules(folder)
        for number, text in prose_of(path)
        if BANNED_WORDS.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", PROSE_FOLDERS)
def test_first_sentences_say_what_a_thing_is(folder: str) -> None:
    found = [
        f"{relative(path)}:{node.lineno}: {node.value.value.strip()[:100]}"  # type: ignore[attr-defined]
        for path in prose_modules(folder)
        for node in _docstrings(tree_of(path))
        if BANNED_BEGINNINGS.match(node.value.value.strip())  # type: ignore[attr-defined]
    ]
    assert not found, "\n".join(found)


def prose_modules(folder: str) -> list[Path]:
    """Modules of a folder, without what is built there and without this one, which names the words."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [
        path for path in paths if not {"build", "__pycache__"} & set(path.parts) and path != Path(__file__).resolve()
    ]


@pytest.mark.parametrize(
    "folder", [folder for folder in PACKAGE_FOLDERS if "benchmarks" not in folder.parts], ids=relative
)
def test_a_package_says_what_it_may_import(folder: Path) -> None:
    docstring = ast.get_docstring(tree_of(folder / "__init__.py")) or ""
    assert relative(folder) == "tidelog" or "Imports:" in docstring, (
        f"{relative(folder)}/__init__.py has no 'Imports:' line"
    )


@pytest.mark.parametrize("folder", SENTENCE_FOLDERS)
def test_sentences_are_short(folder: str) -> None:
    found = [sentence for text in prose_in(folder) for sentence in long_sentences(text)]
    assert not found, "\n".join(found)


def prose_in(folder: str) -> Iterator[str]:
    """Docstrings of a folder's modules, and its Markdown without blocks of code."""
    for path in prose_modules(folder):
        yield from (node.value.value for node in _docstrings(tree_of(path)))  # type: ignore[attr-defined]
    for page in sorted((ROOT / folder).rglob("*.md")):
        yield re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def long_sentences(text: str) -> list[str]:
    """Sentences and rows of tables of more than MAX_SENTENCE_WORDS words; code counts as one word."""
    text = re.sub(r"^.*\S {2,}\S.*$", r"\n\g<0>\n", text, flags=re.MULTILINE)  # columns: each row by itself
    blocks = re.split(r"\n\s*\n|\n\s*[-*|#>]|\n\s{4,}(?=\S)", inspect.cleandoc(re.sub(r"`+[^`]*`+", "X", text)))
    sentences = [each for block in blocks for each in re.split(r"(?<=[.!?:;])\s+|\s\|\s", block.replace("\n", " "))]
    return [each for each in sentences if len(re.findall(r"[A-Za-z][\w'-]*", each)) > MAX_SENTENCE_WORDS]


def test_each_module_has_its_test_or_is_imported_by_one() -> None:
    imported = imported_by_tests()
    tests = {path.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")}
    untested = [
        relative(path)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py")
        and not relative(path).startswith(("benchmarks/", "protocol/messages/"))
        and Path(relative(path)).with_name(f"test_{path.name}") not in tests
        and import_name(path) not in imported
    ]
    allowed = set(THROUGH_OTHERS.read_text().split())
    assert [name for name in untested if name not in allowed] == []


def imported_by_tests() -> set[str]:
    """Names of what the modules below ``tests`` import, whole modules and what they take from them."""
    found: set[str] = set()
    for path in prose_modules("tests"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def import_name(path: Path) -> str:
    """The name by which a module is imported."""
    name = relative(path).removesuffix(".py").replace("/", ".")
    return name if name.startswith("tidelog.") else f"tidelog.{name}"
