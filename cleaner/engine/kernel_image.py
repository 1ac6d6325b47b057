"""Writer of the image of the cleaner's machine code; the compiling child process imports it.

Once for each version of its source; see ``tidelog.log.records.array_kernels``.
"""

from __future__ import annotations

from tidelog.cleaner.engine.kernel_group import CLEANER
from tidelog.cleaner.engine.numba_kernels import KERNELS
from tidelog.log.records.array_kernels import compile_group
from tidelog.log.records.kernel_loader import image_path
from tidelog.log.records.machine_code import write_image

_path = image_path(CLEANER.name, CLEANER.sources)
if not _path.exists():
    _path.parent.mkdir(parents=True, exist_ok=True)
    write_image(compile_group(CLEANER, KERNELS), _path)
