"""The repository's own rules, as tests: sizes, module docstrings, broad excepts, relative and bare package imports."""

from __future__ import annotations

import ast
import inspect
import io
import re
import threading
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.function_names import find_name_fault
from tests.support.module_facts import ModuleFacts, facts_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "log", "cleaner", "broker", "tidelog", "pipeline", "benchmarks")
MAX_FUNCTION_LINES = 40
MAX_TEST_LINES = 50
MAX_MODULE_LINES = 700
MAX_CLASS_METHODS = 20
MAX_LOOSE_MODULES = 12
# Packages with more loose modules, each with its reason. Any other package must put its next one in a subpackage.
WIDE_PACKAGES = {
    "broker/handlers": "one module for each API",
    "protocol/messages": "one module for each API",
    "benchmarks": "one module for each section, and what they share",
}
# The only modules that may catch every exception: the dispatcher with its steps, answers and connections (an unknown
# error becomes UNKNOWN_SERVER_ERROR, or closes the connection), the cleaner's supervision (a round that fails
# quarantines its partition), a follower's fetch loop (a defect fails the partition that was being fetched, or the loop
# starts again), publishing of metadata (an exception of one publisher is logged, and the others still get the
# change), and the shutdown of a late service (in spite of its defect all logs are flushed).
BROAD_EXCEPT_ALLOWED = {
    "broker/admin/listener.py",
    "broker/controller/metadata_controller.py",
    "broker/coordinator/runtime/runtime.py",
    "broker/coordinator/transaction/coordinator.py",
    "broker/handlers/produce.py",  # each partition by itself; a wrapper with any arguments takes 0.2 µs of each
    "broker/loop/deferred.py",
    "broker/loop/lazy.py",
    "broker/loop/steps.py",
    "broker/member/replication.py",
    "broker/member/roles.py",
    "broker/network/connection.py",
    "broker/replica/opening.py",
    "broker/replica/purgatory.py",
    "broker/requests/dispatch.py",
    "broker/requests/direct.py",
    "broker/requests/route.py",
    "cleaner/log_cleaner.py",
}
# Classes whose whole job is one wide surface, each with its reason.
WIDE_CLASSES = {
    "log/unified_log.py:UnifiedLog": "a log's whole public interface; its work is in the modules it calls",
    "log/segment/segment.py:LogSegment": "four files as one: appends, reads, rolls, cuts, names",
    "broker/coordinator/runtime/runtime.py:CoordinatorRuntime": "loads, writes and answers for a topic's shards",
    "broker/replica/partition.py:Partition": "the only door to a log: appends, reads, offsets, leadership",
    "protocol/record/record_batch.py:RecordBatch": "one property per header field",
}

# Functions with more than MAX_FUNCTION_LINES, each with its reason.
LONG_FUNCTIONS = {
    "broker/services.py:__init__": "one table, a row for each late service",
    "broker/handlers/fetch.py:read_partition": "once for each partition of each fetch: a call less is 0.1 µs of it",
    "broker/replica/partition.py:append_records": "once for each append: a call less is 0.1 µs of it",
    "log/unified_log.py:append_as_leader": "once for each append: a call less is 0.1 µs of it",
    "log/records/reference.py:check_records": "one loop over records: 1.0 µs a record against 2.4 in functions",
    "log/validation/validator.py:_assign_single": "once for each batch where nothing is compiled",
    "log/validation/single_batch.py:_check_and_assign": "a header's eight values would go to a part of it",
    "pipeline/decode/columns.py:_decode_records": "one loop over records, a store for each of nine columns",
}

# Modules beside protocol/foreign_text.py that decode JSON, each with its reason. json.loads raises RecursionError for a
# text that is nested too deeply, which callers that expect ValueError do not catch.
JSON_DECODERS = {
    "broker/schema_registry/formats/schema.py": "refuses numbers that are not finite, and catches RecursionError",
    "tidelog/client/sasl/bearer.py": "catches RecursionError",
}

# Riddles and old-fashioned words in English, and first words of docstrings that do not say what a thing is.
BANNED_WORDS = re.compile(r"\b(anew|nobody|somebody|everybody|whoever|for ever|be it)\b", re.IGNORECASE)
BANNED_BEGINNINGS = re.compile(
    r"(What|Who|Whose|How|Where|Whether|Which|As|So many|So much|See the module)\b", re.IGNORECASE
)
VERBS_FILE = Path(__file__).with_name("verbs.txt")
"""The words that docstrings of functions may begin with; a new one is added where it says an action plainly."""
VERBS = frozenset(VERBS_FILE.read_text().split())
NAME_VERBS = frozenset(each.lower() for each in VERBS)
NAMED_AS_TYPES = {
    "protocol/schema/decoder.py": "a method for each type of the message format",
    "protocol/schema/encoder.py": "a method for each type of the message format",
    "protocol/schema/fields.py": "a function for each type of the message format",
    "protocol/compiled/words.py": "slices and words of memory, by Cython's macros",
}
"""Modules whose functions are named by what they describe, each with its reason."""
NOUN_FOLLOWERS = {"of", "is", "are", "has", "have"}
TELLS_OF = {"Tell", "Write"}
PROSE_FOLDERS = (*PACKAGES, "pyspark_tidelog", "tests")
MAX_SENTENCE_WORDS = 28
THROUGH_OTHERS = Path(__file__).with_name("tested_through_others.txt")
"""Modules that only tests of their neighbours run; the list may only become shorter."""


FOLDERS = sorted(
    {
        path.parent
        for folder in PROSE_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if not {"build", "__pycache__"} & set(path.relative_to(ROOT).parts)
    }
)
"""Every folder with modules; links below ``src`` and ``tidelog`` are not followed."""
PACKAGE_FOLDERS = [folder for folder in FOLDERS if folder.relative_to(ROOT).parts[0] in PACKAGES]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules_in(folder: Path) -> list[Path]:
    """The modules of one folder, without this one, which names what is forbidden."""
    return [path for path in sorted(folder.glob("*.py")) if path != Path(__file__).resolve()]


MODULES = [path for folder in PACKAGE_FOLDERS for path in modules_in(folder)]


@pytest.mark.parametrize("folder", PACKAGE_FOLDERS, ids=relative)
def test_modules_are_short_and_have_a_docstring(folder: Path) -> None:
    found = [f"{relative(path)}: {each}" for path in modules_in(folder) for each in faults_of(path, facts_of(path))]
    assert not found, "\n".join(found)


def faults_of(path: Path, facts: ModuleFacts) -> Iterator[str]:
    """What the rules on modules, functions, classes, excepts and imports find in a module."""
    name = relative(path)
    if facts.lines > MAX_MODULE_LINES:
        yield f"longer than {MAX_MODULE_LINES} lines"
    if not facts.docstring:
        yield "no module docstring"
    for function in long_functions(facts, MAX_FUNCTION_LINES):
        if f"{name}:{function}" not in LONG_FUNCTIONS:
            yield f"{function} has over {MAX_FUNCTION_LINES} lines"
    for each, methods in facts.classes:
        if methods > MAX_CLASS_METHODS and f"{name}:{each}" not in WIDE_CLASSES:
            yield f"{each} has over {MAX_CLASS_METHODS} methods"
    if facts.broad_excepts and name not in BROAD_EXCEPT_ALLOWED:
        yield f"broad except at lines {facts.broad_excepts}"
    bare = [line for line, imported in facts.imports if imported in {f"tidelog.{each}" for each in PACKAGES[:4]}]
    if bare:
        yield f"import a module of the package, never the package: lines {bare}"


def test_json_from_outside_is_decoded_with_one_error() -> None:
    callers = {
        relative(path)
        for path in MODULES
        if "benchmarks" not in path.parts and re.search(r"\bjson\.loads?\(", path.read_text())
    }
    assert callers == {"protocol/foreign_text.py", *JSON_DECODERS}


def long_functions(facts: ModuleFacts, max_lines: int) -> list[str]:
    return [function for function, lines in facts.functions if lines > max_lines]


def test_threads_of_tests_are_daemons() -> None:
    """A test that fails leaves its threads running; Python would wait for others at its end, and the run would hang."""
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "threading.Thread" in (source := path.read_text())
        for node in threads_made_in(ast.parse(source))
        if not any(keyword.arg == "daemon" for keyword in node.keywords)
    ]
    assert not found, "expected daemon=True:\n" + "\n".join(found)


def threads_made_in(module: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls that make a thread: of ``Thread`` with a target, and of the constructor of a subclass's base."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread" and (node.args or node.keywords):
            yield node
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "threading.Thread" for base in node.bases):
            inner = (each for each in ast.walk(node) if isinstance(each, ast.Call))
            yield from (each for each in inner if ast.unparse(each.func) == "super().__init__")


def test_a_thread_replaces_nothing_private_of_its_base() -> None:
    """A method called ``_delete`` would run when the thread ends, in place of Thread's own method of that name."""
    taken = {name for name in (*dir(threading.Thread), *vars(threading.Thread())) if re.match(r"_[a-z]", name)}
    found = [
        f"{relative(path)}: {node.name}.{name}"
        for folder in FOLDERS
        for path in modules_in(folder)
        if "threading.Thread)" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "threading.Thread" for base in node.bases)
        for name in sorted(names_given_by(node) & taken)
    ]
    assert not found, "\n".join(found)


def names_given_by(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's methods, and of the attributes that they assign to ``self``."""
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    stored = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    return methods | stored


@pytest.fixture
def known_facts() -> None:
    """Read the facts of all modules, unless earlier tests have read them."""
    for path in MODULES:
        facts_of(path)


@pytest.mark.usefixtures("known_facts")
def test_every_function_listed_as_long_is_long() -> None:
    long = {
        f"{relative(path)}:{each}" for path in MODULES for each in long_functions(facts_of(path), MAX_FUNCTION_LINES)
    }
    assert not LONG_FUNCTIONS.keys() - long, "no longer that long: remove it from LONG_FUNCTIONS"


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if folder.relative_to(ROOT).parts[0] == "tests"], ids=relative
)
def test_no_test_has_more_lines_than_allowed(folder: Path) -> None:
    found = [
        f"{relative(path)}: {each}"
        for path in modules_in(folder)
        for each in long_functions(facts_of(path), MAX_TEST_LINES)
    ]
    assert not found, f"over {MAX_TEST_LINES} lines:\n" + "\n".join(found)


def test_the_makefile_names_tests_that_are_there() -> None:
    named = set(re.findall(r"(?<![\w/])tests/[\w./-]*\w", (ROOT / "Makefile").read_text()))
    assert len(named) > 10
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_makefile_selects_tests_by_words_of_their_names() -> None:
    """A word that no name has selects nothing, and pytest says so only if no other word selects a test."""
    selections = re.findall(r"(tests/[\w/.-]+)[^\n]*? -k (?:'([^'$]+)'|(\w+))", (ROOT / "Makefile").read_text())
    assert selections
    for path, quoted, bare in selections:
        modules = [ROOT / path] if path.endswith(".py") else list((ROOT / path).rglob("*.py"))
        names = re.findall(r"def (test_\w+)", "".join(module.read_text() for module in modules))
        words = [word for word in re.findall(r"\w+", quoted or bare) if word not in ("or", "and", "not")]
        assert not [word for word in words if not any(word in name for name in names)], path


def test_tests_that_a_script_leaves_out_are_there() -> None:
    named = re.findall(r"([\w/]+/test_\w+\.py)::(test_\w+)", (ROOT / "docker" / "verify_aarch64.sh").read_text())
    assert named
    assert not [name for path, name in named if f"def {name}(" not in (ROOT / "tests" / "unit" / path).read_text()]


@pytest.mark.parametrize("folder", PACKAGE_FOLDERS, ids=relative)
def test_no_package_has_more_loose_modules_than_allowed(folder: Path) -> None:
    loose = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(loose) <= MAX_LOOSE_MODULES or relative(folder) in WIDE_PACKAGES, f"{len(loose)} modules: {loose}"


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module; of a package also its other texts, which a user may read."""
    docstrings = {each.line for each in facts_of(path).docstrings}
    is_test = relative(path).startswith("tests/")
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        is_text = token.type == tokenize.STRING and (token.start[0] in docstrings or not is_test)
        if is_text or token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_words_are_plain(folder: Path) -> None:
    found = [
        f"{relative(path)}:{number}: {text.strip()[:100]}"
        for path in modules_in(folder)
        if BANNED_WORDS.search(path.read_text())  # few need to be cut into tokens
        for number, text in prose_of(path)
        if BANNED_WORDS.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_first_sentences_say_what_a_thing_is(folder: Path) -> None:
    found = [
        f"{relative(path)}:{each.line}: {each.text.strip()[:100]}"
        for path in modules_in(folder)
        for each in facts_of(path).docstrings
        if BANNED_BEGINNINGS.match(each.text.strip())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_docstrings_of_functions_begin_with_a_verb(folder: Path) -> None:
    found = [
        f"{relative(path)}:{each.line}: {each.text.strip()[:100]}"
        for path in modules_in(folder)
        for each in facts_of(path).actions
        if not begins_with_verb(each.text.strip())
    ]
    assert not found, f"say what the function does ({VERBS_FILE.name} has the verbs):\n" + "\n".join(found)


def begins_with_verb(text: str) -> bool:
    """Return whether a text begins with one of VERBS that is not a noun here, as in "Name of a topic"."""
    first, second = [*re.findall(r"\S+", text), "", ""][:2]
    return first.rstrip(",.:;") in VERBS and (second not in NOUN_FOLLOWERS or (first in TELLS_OF and second == "of"))


@pytest.mark.parametrize("folder", PACKAGE_FOLDERS, ids=relative)
def test_functions_are_named_by_what_they_do(folder: Path) -> None:
    found = [
        f"{relative(path)}:{each.line}: {each.name}: {fault}"
        for path in modules_in(folder)
        if relative(path) not in NAMED_AS_TYPES
        for each in facts_of(path).named
        if (fault := find_name_fault(each, NAME_VERBS))
    ]
    assert not found, f"({VERBS_FILE.name} has the verbs)\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_verb"),
    [
        ("Return the name.", True),
        ("Acknowledge.", True),
        ("Stop, then wait.", True),
        ("Tell of a client.", True),
        ("The name.", False),
        ("Returns the name.", False),
        ("Name of a topic.", False),
        ("Record is whole.", False),
        ("``n`` bytes.", False),
        ("", False),
    ],
)
def test_a_verb_is_distinguished_from_a_noun(text: str, is_verb: bool) -> None:
    assert begins_with_verb(text) is is_verb


def test_the_verbs_are_sorted() -> None:
    assert VERBS_FILE.read_text().split() == sorted(VERBS)


@pytest.mark.parametrize(
    "folder", [folder for folder in PACKAGE_FOLDERS if "benchmarks" not in folder.parts], ids=relative
)
def test_a_package_says_what_it_may_import(folder: Path) -> None:
    docstring = facts_of(folder / "__init__.py").docstring or ""
    assert relative(folder) == "tidelog" or "Imports:" in docstring, (
        f"{relative(folder)}/__init__.py has no 'Imports:' line"
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_sentences_are_short(folder: Path) -> None:
    found = [
        f"{relative(path)}:{each.line}: {sentence}"
        for path in modules_in(folder)
        for each in facts_of(path).docstrings
        for sentence in long_sentences(each.text)
    ]
    assert not found, "\n".join(found)


PAGES = sorted(
    [
        *(
            page
            for folder in (*PROSE_FOLDERS, "docs")
            for page in (ROOT / folder).rglob("*.md")
            if "build" not in page.parts
        ),
        *ROOT.glob("*.md"),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_sentences_of_a_page_are_short(page: Path) -> None:
    found = long_sentences(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    assert not found, "\n".join(found)


def long_sentences(text: str) -> list[str]:
    """Sentences and rows of tables of more than MAX_SENTENCE_WORDS words; code counts as one word."""
    text = re.sub(r"^.*\S {2,}\S.*$", r"\n\g<0>\n", text, flags=re.MULTILINE)  # columns: each row by itself
    blocks = re.split(r"\n\s*\n|\n\s*[-*|#>]|\n\s{4,}(?=\S)", inspect.cleandoc(re.sub(r"`+[^`]*`+", "X", text)))
    sentences = [each for block in blocks for each in re.split(r"(?<=[.!?:;])\s+|\s\|\s", block.replace("\n", " "))]
    return [each for each in sentences if len(re.findall(r"[A-Za-z][\w'-]*", each)) > MAX_SENTENCE_WORDS]


def test_each_module_has_its_test_or_is_imported_by_one() -> None:
    mentions = mentions_in_tests()
    tests = {path.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")}
    untested = [
        relative(path)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py")
        and not relative(path).startswith(("benchmarks/", "protocol/messages/"))
        and Path(relative(path)).with_name(f"test_{path.name}") not in tests
        and not is_imported(import_name(path), mentions)
    ]
    allowed = THROUGH_OTHERS.read_text().split()
    assert sorted(untested) == sorted(allowed), (
        "a module needs a test, or one of the list has got it and leaves the list"
    )


def mentions_in_tests() -> dict[str, set[Path]]:
    """Dotted names and the modules below ``tests`` whose text has them: all that import a module, and a few more."""
    found: dict[str, set[Path]] = defaultdict(set)
    for folder in FOLDERS:
        for path in modules_in(folder) if relative(folder).startswith("tests") else ():
            for name in re.findall(r"\btidelog(?:\.\w+)+", path.read_text()):
                found[name].add(path)
    return found


def is_imported(name: str, mentions: dict[str, set[Path]]) -> bool:
    """Return whether a module below ``tests`` imports this one. Few need to be parsed for it, the small ones first."""
    package, _, stem = name.rpartition(".")
    from_package = {path for path in mentions.get(package, ()) if stem in path.read_text()}
    nearest = sorted(mentions.get(name, set()) | from_package, key=lambda path: path.stat().st_size)
    return any(name in facts_of(path).imported for path in nearest)


def import_name(path: Path) -> str:
    """The name by which a module is imported."""
    name = relative(path).removesuffix(".py").replace("/", ".")
    return name if name.startswith("tidelog.") else f"tidelog.{name}"
