"""The switch that forbids core dumps of this process: a dump would hold passwords, keys and records."""

from __future__ import annotations

import ctypes
import os

PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Let the system write no core dump of this process, and no other process of its user read its memory.

    Raises OSError. Linux alone knows this; elsewhere it does nothing.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "prctl") and library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
