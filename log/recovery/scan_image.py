"""Writer of the image of recovery's machine code; the compiling child process imports it.

Once for each version of its source; see ``tidelog.log.records.array_kernels``.
"""

from __future__ import annotations

from tidelog.log.records.array_kernels import compile_group
from tidelog.log.records.kernel_loader import image_path
from tidelog.log.records.machine_code import write_image
from tidelog.log.recovery import scan_kernels
from tidelog.log.recovery.scan_group import RECOVERY

_path = image_path(RECOVERY.name, RECOVERY.sources)
if not _path.exists():
    _path.parent.mkdir(parents=True, exist_ok=True)
    write_image(compile_group(RECOVERY, {name: getattr(scan_kernels, name) for name in RECOVERY.signatures}), _path)
