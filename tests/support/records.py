"""Hypothesis strategies for records and batches, shared by the tests of formats, validation and record-level work."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

from hypothesis import strategies as st

from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

NOW_MS = 1_700_000_000_000

nullable_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3)
timestamps = st.integers(0, 2**48) | st.just(-1)


@st.composite
def record_lists(draw: st.DrawFn, *, min_size: int = 1, max_size: int = 12, holes: bool = False) -> list[Record]:
    """Records with ascending offsets from 0; consecutive unless ``holes``."""
    offset = 0
    records = []
    for _ in range(draw(st.integers(min_size, max_size))):
        record = Record(
            offset, draw(timestamps), draw(nullable_bytes), draw(nullable_bytes), tuple(draw(headers)), sequence=-1
        )
        records.append(record)
        offset += draw(st.integers(1, 1000)) if holes else 1
    return records


def batch_of(count: int, *, value_bytes: int = 80, compression: int = 0, first_timestamp: int = NOW_MS) -> bytearray:
    """Build a produce-ready batch of ``count`` records of about 100 bytes, timestamps a millisecond apart."""
    records = [Record(i, first_timestamp + i, b"key-%06d" % i, b"v" * value_bytes) for i in range(count)]
    return build_batch(records, BatchOptions(compression=compression))


def kafka_python(module: str) -> ModuleType:
    """Import a module of kafka-python, without the deprecation warnings of its own imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"kafka.{module}")
