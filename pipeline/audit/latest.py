"""The comparison of a table of the latest values with its log: key by key, over all of a partition.

    log      the last committed record of each key up to the exported end; without a value it deletes the key
    table    a row for each key that is not deleted

    missing      the log's record of a key that the table does not have, by the record's offset
    different    rows of another offset or content than the log's last record, or of a deleted key, by their offset
    twice        further rows of a key
    extra        rows whose key the log does not have, as when a cleaner has removed the key's tombstone

Rows below the log's start whose key is not in the log cannot be compared. Keys, offsets and hashes of a partition are
kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tidelog.pipeline.audit.dead_letters import look_for_letters
from tidelog.pipeline.audit.table import (
    ComparePlan,
    Comparison,
    compare,
    hash_batch,
    log_batches,
    table_batches,
    unreadable_log,
    unreadable_table,
)
from tidelog.pipeline.errors import CorruptBatchError, MalformedTimestampError, one_line

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows that are kept in memory before rows whose key has a later row are dropped.
ROWS_HELD = 1_000_000


def compare_plan(plan: ComparePlan) -> Comparison:
    """Compare one range of a table; damage on either side becomes part of the result. Raises PipelineError, OSError."""
    import pyarrow as pa

    found = _compare_latest(plan) if plan.latest else compare(plan)
    if found.no_rows and not found.unreadable:
        try:
            look_for_letters(plan, found)
        except (pa.ArrowException, OSError) as error:
            found.unreadable = f"the table's dead letters cannot be read: {one_line(error)}"
    found.no_rows.clear()  # may be millions of offsets, which the driver does not need
    return found


def _compare_latest(plan: ComparePlan) -> Comparison:
    import pyarrow as pa

    found = Comparison(plan.topic, plan.partition, plan.start, plan.end)
    try:
        rows = _hash_rows(table_batches(plan))
    except (pa.ArrowException, OSError) as error:
        found.unreadable = unreadable_table(plan, error)
        return found
    try:
        records = _last_of_each_key(log_batches(plan, found), plan.end)
    except (CorruptBatchError, MalformedTimestampError) as error:
        found.unreadable = unreadable_log(error)
    else:
        _note(plan, records, rows, found)
    return found


def _hash_rows(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Build a table of key, offset, hash, and whether the value is null, of the rows that have a key."""
    import pyarrow as pa

    schema = pa.schema([("key", pa.binary()), ("offset", pa.int64()), ("hash", pa.uint64()), ("deletes", pa.bool_())])
    found = [schema.empty_table()]
    for batch in batches:
        offsets, hashes = hash_batch(batch)
        deletes = batch.column("value").is_null()
        rows = pa.Table.from_arrays([batch.column("key"), pa.array(offsets), pa.array(hashes), deletes], schema=schema)
        found.append(rows.filter(rows.column("key").is_valid()))
    return pa.concat_tables(found)


def _last_of_each_key(batches: Iterable[pa.RecordBatch], end: int) -> pa.Table:
    import pyarrow as pa

    held, limit = _hash_rows(()), ROWS_HELD
    for batch in batches:
        held = pa.concat_tables([held, _hash_rows((batch,))])
        if held.num_rows >= limit:
            held = _keep_last(held)
            limit = held.num_rows + ROWS_HELD
    return _keep_last(held.filter(_mask_below(held, end)))


def _mask_below(rows: pa.Table, end: int) -> Any:
    import pyarrow.compute as pc

    return pc.less(rows.column("offset"), end)


def _keep_last(rows: pa.Table) -> pa.Table:
    """Keep the last row of each key. Offsets are unique in a partition."""
    last = rows.group_by("key", use_threads=False).aggregate([("offset", "max")]).column("offset_max").to_numpy()
    return rows.filter(np.isin(rows.column("offset").to_numpy(), last))


def _note(plan: ComparePlan, records: pa.Table, rows: pa.Table, found: Comparison) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows.filter(_mask_below(rows, plan.end)).sort_by([("key", "ascending"), ("offset", "descending")])
    keys, offsets = rows.column("key").combine_chunks(), rows.column("offset").to_numpy()
    again = np.zeros(len(keys), np.bool_)
    if len(keys) > 1:
        again[1:] = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    index = pc.index_in(keys, value_set=records.column("key").combine_chunks())
    known = index.is_valid().to_numpy(zero_copy_only=False)
    at = index.fill_null(0).to_numpy().astype(np.int64)
    stays = ~records.column("deletes").to_numpy()
    equal = np.zeros(len(keys), np.bool_)
    if records.num_rows:
        equal = known & stays[at] & (records.column("offset").to_numpy()[at] == offsets)
        equal &= records.column("hash").to_numpy()[at] == rows.column("hash").to_numpy()
    there: Any = pc.is_in(records.column("key"), value_set=pa.chunked_array([keys.filter(pa.array(known))]))
    absent = stays & ~there.to_numpy()
    found.log_rows, found.table_rows = int(stays.sum()), len(keys)
    found.twice = found.note("twice", np.sort(offsets[again]))
    found.different = found.note("different", np.sort(offsets[known & ~equal & ~again]))
    found.extra = found.note("extra", np.sort(offsets[~known & ~again & (offsets >= plan.start)]))
    found.missing = found.note("missing", np.sort(records.column("offset").to_numpy()[absent]))
