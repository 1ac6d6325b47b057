"""Imports, in a thread, of modules that a broker may never need.

A module is imported when the first request needs it, and that request waits. The module of a late service
(:mod:`tidelog.broker.loop.lazy`) is imported before the service begins. Importing the coordinators' hundred modules
takes 60 ms: on the loop's thread no client would be served for so long. An importing thread holds the interpreter lock
for at most some milliseconds at a time, so that other clients are served meanwhile. Invariants: each module is imported
by one thread, once. A module whose import is in progress counts as not loaded, even if another module imports it: the
loop would wait for the importing thread's lock. Loop thread only.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.protocol.errors import KafkaError, UnknownServerError

logger = logging.getLogger(__name__)


class LateImports:
    """Importer of modules by name, in threads."""

    __slots__ = ("_in_thread", "_loaded", "_under_way")

    def __init__(self, in_thread: Callable[[Callable[[], None]], Deferred[None]]) -> None:
        self._in_thread = in_thread
        self._loaded: set[str] = set()
        """Modules found imported before: a transactional producer's every request asks for one."""
        self._under_way: dict[str, Deferred[None]] = {}

    def is_loaded(self, name: str) -> bool:
        """Return whether this module is imported, and no import of it is in progress in any thread."""
        if name in self._loaded:
            return True
        if name in self._under_way or not _is_whole(sys.modules.get(name)):
            return False
        self._loaded.add(name)
        return True

    def load(self, name: str) -> Deferred[None]:
        """Begin the import of a module. All callers that wait for it share one Deferred; it fails with
        UnknownServerError if the module cannot be imported."""
        loading = self._under_way.get(name)
        if loading is None:
            loading = self._in_thread(lambda: import_or_fail(name))
            if not loading.done:
                self._under_way[name] = loading
                loading.on_done(lambda _: self._under_way.__delitem__(name))
        return loading

    def wait_until_loaded(self, name: str) -> Steps[None]:
        """Wait until a module is imported. Raises UnknownServerError."""
        if not self.is_loaded(name):
            loading = self.load(name)
            yield loading
            loading.result()

    def call_when_loaded(self, name: str | None, callback: Callable[[], object]) -> None:
        """Call ``callback`` once a module is imported: at once if it is already, or if ``name`` is None. If the import
        fails, ``callback`` is never called."""
        if name is None or self.is_loaded(name):
            callback()
        else:
            self.load(name).on_done(lambda loading: _call_if_loaded(loading, callback))


def _is_whole(module: ModuleType | None) -> bool:
    """Return whether all code of a module has run. The import machinery lists it in ``sys.modules`` before that."""
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def import_or_fail(name: str) -> None:
    """Import a module. Any thread. Raises UnknownServerError if that fails, for example because no file descriptor is
    free; the next request tries again."""
    try:
        import_module(name)
    except (ImportError, OSError) as error:
        logger.exception("%s cannot be imported", name)
        raise UnknownServerError(f"{name} cannot be imported") from error


def _call_if_loaded(loading: Deferred[None], callback: Callable[[], object]) -> None:
    try:
        loading.result()
    except KafkaError:
        return  # the thread has logged why
    callback()
