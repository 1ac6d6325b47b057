"""Check of the thread rule: a call by another thread into what belongs to the loop's thread raises at once.

Docstrings are the declarations. A class belongs to the loop's thread if its own docstring or its module's says so (see
``_LOOP_ONLY``). After a module below ``tidelog.broker`` is executed, the methods of such classes are wrapped in the
check, static ones, class methods and setters of properties included; so are functions whose docstring says "Loop
thread". A method for other threads has a sentence that begins with "Any thread", "In a thread" or "In a worker", or its
class says "except ``name``". Values (named tuples, dataclasses, enumerations), exception classes, protocols, special
methods other than ``__call__``, generators, coroutines and compiled classes with C fields are not checked.

One rule holds in the other direction: the loop's thread opens no log, which takes 0.1 ms for each segment and waits for
the disk. It is checked in the same way, in threads that run an event loop. Exceptions to it are made within
``log_openings.opening_expected``, each with its reason.

The loop's thread is one that runs an event loop, or the main thread, where a broker is built and where tests call its
parts. The check is installed by ``tidelog serve`` with TIDELOG_DEBUG=1 and by the tests; otherwise nothing is wrapped,
and it costs nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import get_ident
from types import FunctionType, ModuleType
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeGuard

from tidelog.broker.loop import log_openings

PACKAGE = "tidelog.broker."
_MAIN = threading.main_thread().ident
"""Id of the main thread. It is compared first: most calls come from it, and the full check takes twice as long."""
_COMPILED_FUNCTION = "cython_function_or_method"
_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class made by a class statement of Python."""
_LOOP_ONLY = re.compile(r"loop\s+thread\s+only", re.IGNORECASE)
_LOOP_FUNCTION = re.compile(r"\bLoop\s+thread\b")
_OTHER_THREADS = re.compile(r"(?:\A|[.:]\s)\s*(?:Any\s+thread|In\s+a\s+(?:thread|worker))\b")
"""The beginning of a sentence. Other words do not count: a method of the loop may begin work in a thread."""
_EXCEPT = re.compile(r"loop\s+thread\s+only,?\s+except\s+((?:``\w+``(?:,\s+|\s+and\s+)?)+)", re.IGNORECASE)


_Attribute: TypeAlias = "Callable[..., Any] | property | staticmethod[..., Any] | classmethod[Any, ..., Any]"


class _GuardedAttribute(NamedTuple):
    """A wrapped attribute of a class or module: its original value, and the one that checks the thread."""

    owner: type | ModuleType
    name: str
    original: _Attribute
    guarded: _Attribute


class _State:
    """All wrapped attributes, and whether the check is suspended."""

    guarded: ClassVar[list[_GuardedAttribute]] = []
    is_suspended = False


class WrongThreadError(AssertionError):
    """Another thread called what belongs to the loop's thread, or the loop's thread opened a log."""


def is_loop_thread() -> bool:
    """Return whether the calling thread runs an event loop or is the main one."""
    return _get_running_loop() is not None or threading.current_thread() is threading.main_thread()


def install() -> None:
    """Check all modules of the broker: those imported already now, others after their import.

    Another call only puts its finder of modules before those that were added since.
    """
    known = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    sys.meta_path[:] = [*(known or [_Finder()]), *(finder for finder in sys.meta_path if finder not in known)]
    if known:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            guard(module)
    _guard_openings()


def _guard_openings() -> None:
    """Make ``LogManager`` raise WrongThreadError when the loop's thread opens or creates a log."""
    from tidelog.log.manager import LogManager

    original = LogManager._open

    @wraps(original)
    def open_in_thread(*arguments: Any, **options: Any) -> Any:
        if _get_running_loop() is not None and not log_openings.expected:
            raise WrongThreadError(f"the loop's thread opens the log {arguments[1]}: open it in another thread")
        return original(*arguments, **options)

    _replace(LogManager, "_open", original, open_in_thread)


@contextmanager
def suspended() -> Iterator[None]:
    """Restore all wrapped attributes within this context, for tests that count calls."""
    _State.is_suspended = True
    for each in _State.guarded:
        setattr(each.owner, each.name, each.original)
    try:
        yield
    finally:
        _State.is_suspended = False
        for each in _State.guarded:
            setattr(each.owner, each.name, each.guarded)


def guard(module: ModuleType) -> None:
    """Wrap the classes and functions of a module in the check, where their docstrings ask for it."""
    all_classes = _LOOP_ONLY.search(module.__doc__ or "") is not None
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        doc = value.__doc__ or ""
        if _is_function(value) and _LOOP_FUNCTION.search(doc):
            _replace(module, name, value, _wrap_in_check(value))
        elif _is_open_class(value) and (all_classes or _LOOP_ONLY.search(doc)) and not _is_value(value):
            _guard_class(value, doc)


def _is_function(value: object) -> TypeGuard[FunctionType]:
    """Return whether this is a function in Python, compiled or not."""
    return isinstance(value, FunctionType) or type(value).__name__ == _COMPILED_FUNCTION


def _is_open_class(value: object) -> bool:
    """Return whether this is a class whose methods can be replaced."""
    return isinstance(value, type) and bool(value.__flags__ & _HEAP_TYPE)


def _is_value(cls: type) -> bool:
    is_tuple_or_error = issubclass(cls, tuple | enum.Enum | BaseException)
    return is_tuple_or_error or dataclasses.is_dataclass(cls) or getattr(cls, "_is_protocol", False)


def _guard_class(cls: type, doc: str) -> None:
    exceptions = _EXCEPT.search(doc)
    free = set(re.findall(r"\w+", exceptions[1])) if exceptions else set()
    for name, value in list(vars(cls).items()):
        if name in free or (name.startswith("__") and name != "__call__"):
            continue
        if _OTHER_THREADS.search(getattr(value, "__doc__", None) or ""):
            continue
        if _is_function(value):
            _replace(cls, name, value, _wrap_in_check(value))
        elif isinstance(value, staticmethod | classmethod) and _is_function(value.__func__):
            _replace(cls, name, value, type(value)(_wrap_in_check(value.__func__)))
        elif isinstance(value, property):
            read, write, delete = map(_check_accessor, (value.fget, value.fset, value.fdel))
            _replace(cls, name, value, property(read, write, delete, value.__doc__))


def _check_accessor(function: Any) -> Any:
    """Wrap a function of a property in the check, if there is one."""
    return _wrap_in_check(function) if _is_function(function) else function


def _replace(owner: type | ModuleType, name: str, original: _Attribute, guarded: _Attribute) -> None:
    _State.guarded.append(_GuardedAttribute(owner, name, original, guarded))
    if not _State.is_suspended:
        setattr(owner, name, guarded)


def _wrap_in_check(function: FunctionType) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return function  # callers ask whether it is one; its body runs in callers that are checked

    @wraps(function)
    def enter(*arguments: Any, **options: Any) -> Any:
        if get_ident() != _MAIN and not is_loop_thread():
            thread = threading.current_thread().name
            raise WrongThreadError(f"{function.__module__}.{function.__qualname__} is called by the thread {thread}")
        return function(*arguments, **options)

    return enter


class _Loader(Loader):
    """Executes a module by its own loader, then wraps it in the check."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and the like, for tracebacks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        guard(module)


class _Finder(MetaPathFinder):
    """Finds the broker's modules, to be checked once they are executed."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(PACKAGE):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec
