"""Names and argument types of the recovery kernels: all that is needed to run them from an image."""

from __future__ import annotations

from pathlib import Path

from tidelog.log.records.array_kernels import INTEGER, Array, KernelGroup, Signature

_HERE = Path(__file__).resolve().parent
_BYTES, _LONGS = Array("uint8"), Array("int64")

RECOVERY = KernelGroup(
    name="recovery",
    module="tidelog.log.recovery.scan_image",
    fallback="tidelog.log.recovery.scan_calls",
    sources=(
        *(_HERE / name for name in ("scan_kernels.py", "scan_layout.py", "scan_group.py")),
        _HERE.parent / "records" / "intrinsics.py",
    ),
    signatures={
        "scan": Signature((_BYTES, (INTEGER,) * 3, _LONGS, _BYTES, _BYTES, _LONGS, _LONGS), 1),
        "needed_rows": Signature((_LONGS, INTEGER, _LONGS, _BYTES, _LONGS), 1),
    },
)
