"""The partition spec of an Iceberg table, for new tables and for existing ones.

    topic, partition                     each file has rows of one topic and partition anyway
    hour(timestamp), day(timestamp)      files are split, so that each has rows of a single hour or day

The table keeps its spec, so a later run need not name it. A table with any other spec is refused, because a file would
have rows of several of its partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.pipeline.job_errors import BadRequestError

if TYPE_CHECKING:
    from pyiceberg.table import Table

FIELDS = ("topic", "partition", "hour(timestamp)", "day(timestamp)")


def parse_fields(text: str) -> tuple[str, ...]:
    """Parse the fields of ``--partition-by``, such as ``hour(timestamp),topic``. Raises BadRequestError."""
    fields = tuple(field.strip() for field in text.split(","))
    wrong = [field for field in fields if field not in FIELDS]
    if wrong or len(set(fields)) != len(fields) or {"hour(timestamp)", "day(timestamp)"} <= set(fields):
        raise BadRequestError(
            f"--partition-by {text}: expected some of topic, partition, and hour(timestamp) or day(timestamp)"
        )
    return fields


def apply_spec(table: Table, wanted: Sequence[str]) -> str:
    """Set the wanted spec of a table without rows; return how files must be split: "hour", "day", or "" for not at all.

    Raises BadRequestError for a table with another spec.
    """
    found = _fields_of(table)
    if wanted and not found and table.current_snapshot() is None:
        _set_spec(table, wanted)
        found = tuple(wanted)
    name = ".".join(table.name())
    if wanted and set(wanted) != set(found):
        raise BadRequestError(
            f"Iceberg table {name} is partitioned by {', '.join(found) or 'nothing'}: expected the same"
        )
    if not set(found) <= set(FIELDS):
        raise BadRequestError(
            f"Iceberg table {name} is partitioned by {', '.join(found)}: expected {', '.join(FIELDS)}"
        )
    times = [field.partition("(")[0] for field in found if "(" in field]
    return "hour" if "hour" in times else "".join(times)


def is_by_time(table: Table) -> bool:
    """Return whether the table is partitioned by hour or day, so that it has only times of the years 1 to 9999."""
    return any("(timestamp)" in field for field in _fields_of(table))


def _fields_of(table: Table) -> tuple[str, ...]:
    schema = table.schema()
    fields = []
    for field in table.spec().fields:
        column, transform = schema.find_column_name(field.source_id), str(field.transform)
        fields.append(str(column) if transform == "identity" else f"{transform}({column})")
    return tuple(fields)


def _set_spec(table: Table, wanted: Sequence[str]) -> None:
    from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

    with table.update_spec() as update:
        for field in wanted:
            if field == "hour(timestamp)":
                update.add_field("timestamp", HourTransform(), "timestamp_hour")
            elif field == "day(timestamp)":
                update.add_field("timestamp", DayTransform(), "timestamp_day")
            else:
                update.add_field(field, IdentityTransform(), field)
