"""``tidelog.scan``: a log as a ``pyarrow.RecordBatchReader``, for pandas, polars, DuckDB and all others that read
Arrow.

    import tidelog

    tidelog.scan("/var/lib/tidelog", "orders").read_pandas()

The files are read batch by batch, so that a log may be larger than memory. The decoder is also that of the Spark data
source, ``format("tidelog")``. The call plans by file names and indices; records appended later need another call. The
broker may run meanwhile, as during a query of Spark: segments that it swaps or rolls are found again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.decode.past_damage import Damage, read_past_damage
from tidelog.pipeline.errors import OptionError, PipelineError
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.offset_json import EARLIEST, LATEST
from tidelog.pipeline.options.options import OffsetSpec, SourceOptions, TopicChoice
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, SegmentSlice, plan
from tidelog.pipeline.plan.request import find_bounds
from tidelog.pipeline.scan.bounds import Moment, Offsets, key_bytes, list_values, offset_ranges, time_filter

if TYPE_CHECKING:
    import pyarrow as pa

#: Size of a slice in bytes: one slice is open at a time.
_SLICE_BYTES = 256 * 1024 * 1024
logger = logging.getLogger(__name__)

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Topics = str | Iterable[str] | Mapping[str, Iterable[int]]
Key = bytes | str


def scan(
    path: Paths,
    topic: Topics,
    *,
    offsets: Offsets | None = None,
    times: tuple[Moment | None, Moment | None] = (None, None),
    keys: Key | Iterable[Key] | None = None,
    isolation: str = "read_uncommitted",
    columns: str | Iterable[str] | None = None,
    skip_damage: bool = False,
    fail_on_data_loss: bool = True,
) -> pa.RecordBatchReader:
    """Read records of topics from the files of data directories, ordered by topic, partition and offset.

    ``path``: a data directory (``log.dirs``), or several. ``topic``: a name, several, or topic -> partitions.
    ``offsets``: (begin, end), the same for every partition, or partition -> (begin, end); partitions without an entry
    are then not read. With several topics, the same offsets hold for each. The end is not included; None stands for the
    log's own start or end. ``times``: (begin, end), the end not included: ms since 1970, datetimes, or ISO 8601 (in
    local time without a zone). ``keys``: only records with these keys; a single key is looked up in the topic's key
    index, if any.
    ``isolation``: as a consumer's ``isolation.level``. ``columns``: names among ``key value topic partition offset
    timestamp timestampType headers``; by default all but headers. ``skip_damage``: damaged batches are left out, as by
    an export, each with a warning that says what was lost; otherwise they raise CorruptBatchError.
    ``fail_on_data_loss`` false: reading goes on after missing records.

    Raises PipelineError for wrong arguments, for a missing pyarrow, and for wanted records that are gone already. The
    returned reader raises PipelineError for damage, and for records that are deleted before it reads them.
    """
    _require_arrow()
    wanted = Columns() if columns is None else Columns(list_values("columns", columns, str))
    asked = None if keys is None else key_bytes(keys)
    options = ReadOptions(
        isolation=_isolation(isolation),
        fail_on_data_loss=fail_on_data_loss,
        row_filter=time_filter(times, asked[0] if asked is not None and len(asked) == 1 else None),
    )
    partitions = _partitions(path, topic, options.isolation)
    ranges = offset_ranges(partitions, offsets, fail_on_data_loss=fail_on_data_loss)
    several = frozenset(asked) if asked is not None and len(asked) != 1 else None
    return _Scan(wanted, options, several, skip_damage=skip_damage).reader(ranges)


def _require_arrow() -> None:
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise PipelineError("pyarrow is not installed: pip install pyarrow")


def _isolation(text: str) -> Isolation:
    try:
        return Isolation(text)
    except ValueError:
        raise OptionError(f"isolation={text}: expected read_uncommitted or read_committed") from None


def _partitions(path: Paths, topic: Topics, isolation: Isolation) -> list[Partition]:
    paths = list_values("path", path, str, os.PathLike)
    return find_bounds(
        SourceOptions(
            paths=tuple(os.fspath(one) for one in paths),
            choice=_choice(topic),
            starting=OffsetSpec("offsets", EARLIEST),
            ending=OffsetSpec("offsets", LATEST),
            read_committed=isolation is Isolation.READ_COMMITTED,
        )
    )


def _choice(topic: Topics) -> TopicChoice:
    if isinstance(topic, str):
        return TopicChoice(topics=(topic,))
    if isinstance(topic, Mapping):
        return TopicChoice(
            partitions=tuple((name, one) for name, numbers in topic.items() for one in _numbers(numbers))
        )
    names = tuple(dict.fromkeys(list_values("topic", topic, str)))
    if not names:
        raise OptionError("topic is empty: expected a name, several, or topic -> partitions")
    return TopicChoice(topics=names)


def _numbers(given: int | Iterable[int]) -> Iterable[int]:
    if isinstance(given, int | Iterable):
        return (given,) if isinstance(given, int) else given
    raise OptionError(f"topic: {given!r} is no partition and no list of them")


@dataclass(frozen=True, slots=True)
class _Scan:
    """One scan: its columns, read options and keys.

    ``keys``: only records with these are kept, after decoding; None if the decoder selects the records, or all are
    wanted.
    """

    wanted: Columns
    options: ReadOptions
    keys: frozenset[bytes] | None
    skip_damage: bool

    def reader(self, ranges: Sequence[OffsetRange]) -> pa.RecordBatchReader:
        """Plan the ranges and return their reader. Raises PipelineError."""
        import pyarrow as pa

        request = ReadRequest(
            tuple(ranges),
            _SLICE_BYTES,
            fail_on_data_loss=self.options.fail_on_data_loss,
            row_filter=self.options.row_filter,
        )
        return pa.RecordBatchReader.from_batches(self.wanted.arrow_schema(), self._batches(plan(request)))

    def _batches(self, slices: Sequence[SegmentSlice]) -> Iterator[pa.RecordBatch]:
        read = self._with(("offset",) if self.skip_damage else (), ("key",) if self.keys is not None else ())
        found = self._read(slices, read)
        if self.keys is not None:
            found = _of_keys(found, self.keys)
        if read == self.wanted:
            return found
        return (batch.select(list(self.wanted.names)) for batch in found)

    def _read(self, slices: Sequence[SegmentSlice], read: Columns) -> Iterator[pa.RecordBatch]:
        if self.skip_damage:
            return read_past_damage(slices, read, self.options, _warn)
        return (batch for piece in slices for batch in read_slice(piece, read, options=self.options))

    def _with(self, *needed: tuple[str, ...]) -> Columns:
        """Return the columns to read: the wanted ones, and those that this class itself needs."""
        names = (*self.wanted.names, *(name for some in needed for name in some))
        return Columns(tuple(dict.fromkeys(names)))


def _of_keys(batches: Iterator[pa.RecordBatch], keys: frozenset[bytes]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = pa.array(sorted(keys), pa.binary())
    for batch in batches:
        is_asked: Any = pc.is_in(batch.column("key"), value_set=chosen)
        if is_asked.true_count:
            yield batch.filter(is_asked)


def _warn(damage: Damage) -> None:
    name = f"{damage.piece.topic}-{damage.piece.partition}"
    logger.warning("%s: %s at byte %d: %s", name, damage.piece.path, damage.position, damage.reason)
