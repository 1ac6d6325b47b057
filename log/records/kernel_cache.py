"""Cache directory of numba for the kernels, one for each state of their sources.

numba tells whether a function's machine code on disk is still good by the text of the file the function is in. But a
kernel holds the code of those it calls and the values of constants, and both come from other files too: after an
update it would go on with the old ones. So the directory's name has a digest of all files that kernels are made of.
numba looks for the directory when a function is decorated: kernel modules take ``njit`` from here.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numba

from tidelog.log.records.kernel_loader import cache_directory

__all__ = ["njit", "sources"]

_ROOT = Path(__file__).resolve().parent.parent.parent
#: Kernel modules, the constants they share with their plain twins, and what they are all compiled with.
SOURCES = tuple(
    f"{directory}/{pattern}"
    for directory in (
        "log/records",
        "log/recovery",
        "pipeline/engine",
        "pipeline/decode",
        "pipeline/sink",
    )
    for pattern in ("intrinsics.py", "*layout.py", "batch_table.py", "*kernels.py", "*reference.py")
)


def sources() -> list[Path]:
    """The files that decide what compiled kernels do."""
    return sorted({path for pattern in SOURCES for path in _ROOT.glob(pattern)})


def _separate() -> str:
    text = b"".join(path.read_bytes() for path in sources())
    return os.path.join(cache_directory(), f"numba-{zlib.crc32(text):08x}{zlib.adler32(text):08x}")


_DIRECTORY = _separate()


if TYPE_CHECKING:
    from numba import njit
else:

    def njit(*arguments, **options):
        """numba's decorator, looking for its cache there. numba forgets the directory when its environment changes."""
        numba.config.CACHE_DIR = _DIRECTORY
        return numba.njit(*arguments, **options)
