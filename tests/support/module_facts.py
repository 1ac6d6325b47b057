"""Facts of Python modules for the rules of the tidy test: each file is parsed once for all rules."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.function_names import NamedFunction


class Text(NamedTuple):
    """A docstring and the line it begins at."""

    line: int
    text: str


class ModuleFacts(NamedTuple):
    """The facts of one module."""

    lines: int
    docstring: str | None
    functions: list[tuple[str, int]]
    """Names of all functions, and their lengths in lines."""
    named: list[NamedFunction]
    """Functions for the rule of their names; special methods are left out."""
    classes: list[tuple[str, int]]
    """Names of classes, and their numbers of methods."""
    broad_excepts: list[int]
    """Lines of handlers that catch everything and do not raise it again."""
    imports: list[tuple[int, str]]
    """Lines and names of ``import name``."""
    imported: frozenset[str]
    """Modules that the module imports, and names that it imports from them."""
    docstrings: list[Text]
    actions: list[Text]
    """Docstrings of functions, without those of tests, constructors and functions decorated by NAMED_AS_THINGS."""


NAMED_AS_THINGS = {
    "property",
    "cached_property",
    "setter",
    "fixture",
    "contextmanager",
    "asynccontextmanager",
    "composite",
}
"""Decorators of functions that are used as a value, a resource or a strategy, and may be described as one."""


_BLOCKS = {"body", "handlers", "orelse", "finalbody", "cases"}
"""Fields of statements that hold statements, or handlers or cases with statements."""


@cache
def facts_of(path: Path) -> ModuleFacts:
    """Read a module. Its syntax tree is not kept, because the trees of all modules would take half a gigabyte."""
    text = path.read_text()
    tree = ast.parse(text, str(path))
    nodes = list(_statements_in(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    imports = [(node.lineno, alias.name) for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return ModuleFacts(
        lines=text.count("\n"),
        docstring=ast.get_docstring(tree),
        functions=[(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions],
        named=[_named(node) for node in functions if not node.name.startswith("__")],
        classes=[(node.name, sum(_is_method(member) for member in node.body)) for node in classes],
        broad_excepts=[node.lineno for node in nodes if isinstance(node, ast.ExceptHandler) and _is_broad(node)],
        imports=imports,
        imported=frozenset({name for _, name in imports} | set(_taken(nodes))),
        docstrings=[found for node in (tree, *classes, *functions) for found in _docstring_of(node)],
        actions=[found for node in functions if _is_action(node) for found in _docstring_of(node)],
    )


def _statements_in(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module, its statements and its handlers, in the order of `ast.walk`; faster, without expressions."""
    todo: deque[ast.AST] = deque([tree])
    while todo:
        node = todo.popleft()
        for field in node._fields:
            if field in _BLOCKS:
                todo.extend(getattr(node, field))
        yield node


def _named(function: ast.FunctionDef | ast.AsyncFunctionDef) -> NamedFunction:
    returns = ast.unparse(function.returns) if function.returns else ""
    return NamedFunction(function.lineno, function.name, returns, tuple(_decorators(function)))


def _decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Iterate over the last names of a function's decorators."""
    for each in function.decorator_list:
        yield ast.unparse(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2]


def _is_action(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is neither a test, nor a constructor, nor used as a thing."""
    if function.name.startswith("test_") or function.name == "__init__":
        return False
    return NAMED_AS_THINGS.isdisjoint(_decorators(function))


def _is_method(member: ast.stmt) -> bool:
    """Return whether a member counts as a method: properties do not, because they are used as attributes."""
    if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    names = {d.id for d in member.decorator_list if isinstance(d, ast.Name)}
    return not names & {"property", "cached_property", "overload"}


def _is_broad(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches everything and does not raise it again at its end."""
    if handler.type is not None and not (
        isinstance(handler.type, ast.Name) and handler.type.id in {"Exception", "BaseException"}
    ):
        return False
    last = handler.body[-1]
    return not (isinstance(last, ast.Raise) and last.exc is None)


def _taken(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _docstring_of(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Text]:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        yield Text(first.lineno, first.value.value)
