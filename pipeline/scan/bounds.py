"""The offset ranges, time filter and keys of a scan, built from the arguments of its caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any

from tidelog.log.find.times import parse_time
from tidelog.pipeline.errors import DataLossError, OptionError
from tidelog.pipeline.options.row_filter import MAX_TIME, MIN_TIME, RowFilter
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.plan import OffsetRange

Moment = int | str | datetime
"""Milliseconds since 1970, ISO 8601 text, or a datetime; text and datetime are in local time if they have no zone."""
Span = tuple[int | None, int | None]
"""First offset, and the offset after the last; None stands for the log's own start or end."""
_KINDS: dict[type, str] = {str: "text", bytes: "bytes", PathLike: "path"}
"""Types of arguments -> their names in errors."""
Offsets = Span | Mapping[int, Span]


def offset_ranges(
    partitions: Sequence[Partition], offsets: Offsets | None, *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """Return the range of each wanted partition. An end beyond the end of the log is reduced to it.

    Raises OptionError, and with ``fail_on_data_loss`` DataLossError for a start before the log's own.
    """
    if isinstance(offsets, Mapping):
        there = {partition.directory.partition for partition in partitions}
        for number in offsets:
            if number not in there:
                raise OptionError(f"offsets: partition {number} does not exist: expected some of {sorted(there)}")
        spans = {number: _span(span) for number, span in offsets.items()}
        partitions = [partition for partition in partitions if partition.directory.partition in spans]
    else:
        span = _span((None, None) if offsets is None else offsets)
        spans = {partition.directory.partition: span for partition in partitions}
    return [
        _range(partition, spans[partition.directory.partition], fail_on_data_loss=fail_on_data_loss)
        for partition in partitions
    ]


def _span(given: Span) -> Span:
    try:
        begin, end = given
    except (TypeError, ValueError):
        raise OptionError(f"offsets={given!r}: expected (begin, end), each an offset or None") from None
    for offset in (begin, end):
        if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int) or offset < 0):
            raise OptionError(f"offsets={given!r}: expected (begin, end), each an offset from 0 on, or None")
    return begin, end


def _range(partition: Partition, span: Span, *, fail_on_data_loss: bool) -> OffsetRange:
    begin, end = span
    first = partition.bounds.start
    end = partition.end if end is None else min(end, partition.end)
    if begin is None:
        begin = first
    elif begin < first and begin < end:
        if fail_on_data_loss:
            raise DataLossError(
                f"{partition.directory.topic}-{partition.directory.partition} begins at {first}, records from {begin} "
                "on are gone (fail_on_data_loss=False would go on there)"
            )
        begin = first
    return OffsetRange(partition.directory, begin, max(begin, end))


def time_filter(times: tuple[Moment | None, Moment | None], key: bytes | None) -> RowFilter:
    """Build the filter of records from the first time on, before the second, and with one key. Raises OptionError."""
    try:
        begin, end = times
    except (TypeError, ValueError):
        raise OptionError(f"times={times!r}: expected (begin, end), each a time or None") from None
    first = MIN_TIME if begin is None else _milliseconds(begin)
    last = MAX_TIME if end is None else _milliseconds(end) - 1
    return RowFilter(first, last, key)


def _milliseconds(moment: Moment) -> int:
    """Return the first millisecond at or after a moment."""
    if isinstance(moment, datetime):
        try:
            return first_millisecond(moment)
        except (OverflowError, ValueError):  # without a zone, at an end of the calendar
            raise OptionError(f"times: {moment} is no time in the local zone") from None
    if isinstance(moment, str):
        try:
            return parse_time(moment)
        except ValueError as error:
            raise OptionError(f"times: {error}") from None
    if isinstance(moment, int) and not isinstance(moment, bool) and MIN_TIME < moment <= MAX_TIME:
        return moment
    raise OptionError(f"times: {moment!r} is not a time: expected ms since 1970, a datetime, or ISO 8601")


def first_millisecond(moment: datetime) -> int:
    """Return the first millisecond since 1970 at or after a moment; without a zone it is local.

    Raises OverflowError, ValueError for a local time at an end of the calendar.
    """
    return -(-round(moment.timestamp() * 1_000_000) // 1000)


def key_bytes(keys: bytes | str | Iterable[bytes | str]) -> list[bytes]:
    """Return the keys as bytes, each once; text is encoded as UTF-8. Raises OptionError."""
    given = list_values("keys", keys, bytes, str)
    return list(dict.fromkeys(key.encode() if isinstance(key, str) else bytes(key) for key in given))


def list_values(name: str, given: Any, *kinds: type) -> tuple[Any, ...]:
    """Return the values of an argument that is one value of ``kinds``, or several. Raises OptionError, which calls it
    ``name``."""
    if isinstance(given, kinds):
        return (given,)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    for one in found:
        if not isinstance(one, kinds):
            expected = " or ".join(_KINDS[kind] for kind in kinds)
            raise OptionError(f"{name}: {one!r} is no {expected}")
    return found
