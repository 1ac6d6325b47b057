"""The switch that forbids core dumps of this process, which would have passwords, keys and records in them."""

from __future__ import annotations

import ctypes
import os

PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Forbid core dumps of this process, and access to its memory by other processes of its user.

    Raises OSError. It works on Linux; elsewhere it does nothing.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "prctl") and library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
