"""Names and argument types of the cleaner's kernels: all that is needed to run them from an image."""

from __future__ import annotations

from pathlib import Path

from tidelog.log.records.array_kernels import INTEGER, Array, KernelGroup, Signature

_HERE = Path(__file__).resolve().parent
_RECORDS = _HERE.parents[1] / "log" / "records"

_BYTES, _LONGS, _TABLE = Array("uint8"), Array("int64"), Array("int64", 2)
_WORDS, _DIGESTS = Array("uint64"), Array("uint64", 2)
_PAIR = (INTEGER, INTEGER)
_MAP = (_WORDS, Array("uint32"), _BYTES)
_BITS = (_BYTES, _BYTES)

CLEANER = KernelGroup(
    name="cleaner",
    module="tidelog.cleaner.engine.kernel_image",
    fallback="tidelog.cleaner.engine.warm_kernels",
    sources=(
        *(_HERE / name for name in ("kernels.py", "map_kernels.py", "transaction_kernels.py", "lz4_kernels.py")),
        _HERE / "batch_table.py",
        Path(__file__).resolve(),
        _RECORDS / "intrinsics.py",
    ),
    signatures={
        "scan_batches": Signature((_BYTES, _PAIR, _PAIR, _TABLE), 3),
        "parse_records": Signature((_BYTES, _TABLE, _PAIR, _TABLE), 1),
        "filter_batches": Signature((_BYTES, _TABLE, _PAIR, _BYTES, INTEGER, _PAIR, _BYTES, _TABLE, _LONGS), 3),
        "index_entries": Signature((_TABLE, INTEGER, INTEGER, _LONGS, _TABLE), 1),
        "hash_keys": Signature((_BYTES, _TABLE, INTEGER, (INTEGER, _WORDS), _DIGESTS)),
        "put_block": Signature((_DIGESTS, _PAIR, _MAP, _BITS, INTEGER, _LONGS), 1),
        "look_up_block": Signature((_DIGESTS, INTEGER, _MAP, _BYTES, INTEGER, _LONGS)),
        "entries_of": Signature((_MAP, _PAIR, _DIGESTS), 1),
        "partition_digests": Signature((_DIGESTS, INTEGER, _DIGESTS, _LONGS)),
        "decide_batches": Signature((_BYTES, _TABLE, _PAIR, _TABLE, (_TABLE, _TABLE), _TABLE, _PAIR, _LONGS), 2),
        "move_producers": Signature((_TABLE, _TABLE), 1),
        "expand_lz4": Signature((_BYTES, _TABLE, _PAIR, INTEGER, (INTEGER, INTEGER, INTEGER)), 2),
        "pack_lz4": Signature((_BYTES, _TABLE, _PAIR, _BYTES, INTEGER, _LONGS), 2),
    },
)
