"""Writer of the image of the find kernels' machine code; the compiling child process imports it.

Once for each version of its source; see ``tidelog.log.records.array_kernels``.
"""

from __future__ import annotations

from tidelog.log.find.engine.kernel_group import FIND
from tidelog.log.find.engine.kernels import KERNELS
from tidelog.log.records.array_kernels import compile_group
from tidelog.log.records.kernel_loader import image_path
from tidelog.log.records.machine_code import write_image

_path = image_path(FIND.name, FIND.sources)
if not _path.exists():
    _path.parent.mkdir(parents=True, exist_ok=True)
    write_image(compile_group(FIND, KERNELS), _path)
