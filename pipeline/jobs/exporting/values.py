"""The value columns of an export's table, which the driver decides before the first file is written.

    registry     the schemas of each topic's subject, ``<topic>-value``, and the columns that the table has
    plain JSON   inferred from the first values of the first run; the table keeps them

The columns are kept in the table's state, and sent to the workers with their plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.pipeline.decode.decode import Isolation, ReadOptions
from tidelog.pipeline.decode.past_damage import read_past_damage
from tidelog.pipeline.export.manifest import Manifest
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs.exporting.request import ExportRequest
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan_range
from tidelog.pipeline.values.columns import ValueColumns, decode_type, encode_type, inferred_type, registered_type

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE = 1000
"""Number of values of each partition from which the schema of plain JSON is inferred."""


def choose_value_columns(request: ExportRequest, before: Manifest) -> tuple[ExportRequest, Manifest]:
    """Return the request and the state, both with the table's value columns. Raises BadRequestError, other
    PipelineErrors."""
    has, wants = bool(before.values), bool(request.values)
    if before.version and has != wants:
        how = "with" if has else "without"
        raise BadRequestError(
            f"--values {request.values or 'not given'}: the table was made {how} it, expected the same"
        )
    if not wants:
        return request, before
    known = decode_type(before.values) if has else None
    found = _find_registered_type(request, known) if request.registry is not None else known or _infer_type(request)
    if found is None:
        return request, before  # no value yet
    encoded = encode_type(found, before.values)
    return replace(request, columns=ValueColumns(encoded, request.registry)), replace(before, values=encoded)


def _find_registered_type(request: ExportRequest, known: pa.StructType | None) -> pa.StructType:
    assert request.registry is not None
    topics = request.source.topics()
    found = registered_type(request.registry, topics, known)
    if found is None:
        names = ", ".join(f"{topic}-value" for topic in topics)
        raise BadRequestError(f"--registry: the registry has no schema of {names}")
    return found


def _infer_type(request: ExportRequest) -> pa.StructType | None:
    values = list(_sample(request))
    found = inferred_type(values)
    if found is None and values:
        raise BadRequestError("--values json: none of the first values is an object with fields")
    return found


def _sample(request: ExportRequest) -> Iterator[bytes]:
    """Yield the first values of each partition, without nulls and damaged batches."""
    isolation = Isolation.READ_COMMITTED if request.source.read_committed else Isolation.READ_UNCOMMITTED
    options = ReadOptions(isolation, fail_on_data_loss=False)
    for partition in request.source.partitions():
        wanted = OffsetRange(partition.directory, partition.bounds.start, partition.end)
        slices = plan_range(wanted, ReadRequest((), 1 << 24, fail_on_data_loss=False))
        batches = read_past_damage(slices, Columns(("value", "offset")), options, lambda _: None)
        values = (value.as_py() for batch in batches for value in batch.column("value").drop_null())
        yield from islice(values, SAMPLE)
