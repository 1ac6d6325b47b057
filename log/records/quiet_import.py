"""Context manager for imports of heavy packages in a thread, beside which the event loop goes on.

An ``import`` holds the interpreter lock. Measured on numpy, with the importing process alone on its cores, the longest
times that another thread waited for the lock:

- 80 to 100 ms in ``dlopen``: relocations and static constructors of libopenblas. So the libraries are opened first
  by ``ctypes``, which releases the lock meanwhile; the import then finds them in the process;
- 20 to 25 ms in a full garbage collection over all objects of the process. So collections wait until the import is
  over. All objects are then frozen: later collections pass over those of the import, which live as long as the process;
- 5 ms, the switch interval, each time the loop released the lock in a system call. So the first quiet import sets the
  interval to 0.5 ms.

OpenBLAS is set to one thread: nothing here multiplies matrices, and each further thread would take memory.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

#: Package -> shared libraries below it that take long to open, with the libraries that they need.
_LIBRARIES = {
    "numpy": ("core/_multiarray_umath*.so", "_core/_multiarray_umath*.so"),
}
_RTLD_NOW = 2
#: How long Python code of another thread may go on when the loop wants the interpreter lock back.
SWITCH_INTERVAL_S = 0.0005


class _Running:
    """Count of the quiet imports that run now, and whether the collector was on before them."""

    lock = threading.Lock()
    count = 0
    was_enabled = False


def shorten_switch_interval() -> None:
    """Set the time after which a thread must release the interpreter lock to at most SWITCH_INTERVAL_S."""
    if sys.getswitchinterval() > SWITCH_INTERVAL_S:
        sys.setswitchinterval(SWITCH_INTERVAL_S)


@contextmanager
def quiet_import(*packages: str) -> Iterator[None]:
    """Prepare for a block that imports ``packages`` (keys of _LIBRARIES). Any thread."""
    shorten_switch_interval()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for package in packages:
        _open_libraries(package)
    with _Running.lock:
        if _Running.count == 0:
            _Running.was_enabled = gc.isenabled()
            gc.disable()
        _Running.count += 1
    try:
        yield
    finally:
        with _Running.lock:
            _Running.count -= 1
            if _Running.count == 0:
                gc.freeze()
                if _Running.was_enabled:
                    gc.enable()


def _open_libraries(package: str) -> None:
    """Open the shared libraries of a package. If one is not found or does not open, the import will raise the error."""
    import ctypes
    from pathlib import Path  # 0.7 MB, which an idle broker does without

    found = importlib.util.find_spec(package)
    for directory in (found and found.submodule_search_locations) or ():
        for pattern in _LIBRARIES[package]:
            for path in Path(directory).glob(pattern):
                try:
                    open_library = ctypes.CDLL(None).dlopen
                except (OSError, AttributeError) as error:  # no dynamic C library
                    logger.debug("%s is not opened ahead: %s", path, error)
                    return
                open_library.restype = ctypes.c_void_p
                open_library(os.fsencode(path), _RTLD_NOW)
