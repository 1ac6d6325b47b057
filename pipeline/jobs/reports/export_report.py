"""The report that an export prints at its end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tidelog.pipeline.jobs.export import ExportResult


def report(result: ExportResult, table: str) -> list[str]:
    """Write lines about the written files, and for each partition how far the table is complete and which offsets were
    lost."""
    if result.committed:
        first = (
            f"{table} version {result.manifest.version}: {result.rows:,} rows in {result.files} files, "
            f"{result.size:,} bytes"
        )
        lines = [first]
    else:
        lines = [f"{table} version {result.manifest.version}: nothing new"]
    if result.dead_letters:
        lines.append(f"dead letters: {result.dead_letters}; see the dead-letter table")
    for topic, partitions in sorted(result.complete_through().items()):
        for partition, (timestamp, offset) in sorted(partitions.items()):
            through = f"complete through offset {offset - 1}{_time_text(timestamp)}" if offset else "has no records yet"
            lines.append(f"{topic}-{partition} {through}")
            for start, end in result.manifest.topics[topic].partitions[partition].lost:
                lines.append(f"{topic}-{partition} lost before export: offsets {start} to {end - 1}")
    return lines


def as_json(result: ExportResult, table: str, before_ms: int | None) -> dict[str, Any]:
    """Convert a result to JSON values; ``incomplete`` is None without ``before_ms``."""
    return {
        "table": table,
        "version": result.manifest.version,
        "committed": result.committed,
        "rows": result.rows,
        "files": result.files,
        "bytes": result.size,
        "dead_letters": result.dead_letters,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "complete_before_offset": offset,
                "timestamp": timestamp,
                "lost": [list(each) for each in result.manifest.topics[topic].partitions[partition].lost],
            }
            for topic, partitions in sorted(result.complete_through().items())
            for partition, (timestamp, offset) in sorted(partitions.items())
        ],
        "incomplete": None if before_ms is None else result.incomplete(before_ms),
    }


def completeness(result: ExportResult, before_ms: int) -> str:
    """Write a line that says whether every record before a time is in the table."""
    missing = result.incomplete(before_ms)
    found = f"no, {', '.join(missing)} may get earlier records" if missing else "yes"
    return f"complete before {_text(before_ms)}: {found}"


def _time_text(timestamp: int) -> str:
    return "" if timestamp < 0 else f", {_text(timestamp)}"


def _text(timestamp: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):  # after the year 9999
        return f"{timestamp} ms"
