"""Writer of the image of the record kernels' machine code; the compiling child process imports it.

Like every module that ``tidelog.log.records.compile`` is given it does its work when imported, once for each version of
its source; see ``tidelog.log.records.machine_code``.
"""

from __future__ import annotations

from tidelog.log.records.kernel_loader import image_path
from tidelog.log.records.machine_code import write_image
from tidelog.log.records.native_kernels import compile_image

_path = image_path()
if not _path.exists():
    _path.parent.mkdir(parents=True, exist_ok=True)
    write_image(compile_image(), _path)
