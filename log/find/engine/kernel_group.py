"""Names and argument types of the find kernels: all that is needed to run them from an image."""

from __future__ import annotations

from pathlib import Path

from tidelog.log.records.array_kernels import INTEGER, Array, KernelGroup, Signature

_HERE = Path(__file__).resolve().parent
_BYTES, _COLUMN = Array("uint8"), Array("int64")

FIND = KernelGroup(
    name="find",
    module="tidelog.log.find.engine.kernel_image",
    fallback="tidelog.log.find.engine.kernel_calls",
    sources=(
        _HERE / "kernels.py",
        _HERE / "indexing_kernels.py",
        _HERE / "writing_kernels.py",
        *(_HERE.parents[1] / "records" / name for name in ("kernels.py", "intrinsics.py")),
        Path(__file__).resolve(),
    ),
    signatures={
        "walk_chunk": Signature(
            (_BYTES, INTEGER, INTEGER, _BYTES, INTEGER, *[_COLUMN] * 6, INTEGER),
            4,
        ),
        "put_entries": Signature((_BYTES, _BYTES, (INTEGER,) * 4, _COLUMN, _COLUMN, _COLUMN, INTEGER, INTEGER), 5),
        "put_tags": Signature((_BYTES, *[_COLUMN] * 4, INTEGER, INTEGER)),
        "write_pieces": Signature((INTEGER, INTEGER, _BYTES, INTEGER, INTEGER), 1),
        "walk_chain": Signature((_BYTES, INTEGER, (INTEGER,) * 5, _COLUMN, _COLUMN), 1),
        "match_records": Signature((_BYTES, INTEGER, (INTEGER,) * 6, _BYTES, _BYTES, _BYTES, _COLUMN), 1),
        "nth_place": Signature((_BYTES, INTEGER), 2),
    },
)
