"""The latest record of each key of a partition: the new rows of an upsert, and the merge of files that had older ones.

    records of a range, in order -> the last row of each key, including deletes    -> a staged file
    staged file or table file, keys of later staged files -> its remaining rows     -> a file of the table

A key belongs to its topic and partition, as for the cleaner. A record without a value deletes its key. A record without
a key becomes a dead letter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidelog.pipeline.export.parquet import RowWriter, name_unreadable
from tidelog.pipeline.export.store import LOCAL, TableStore

if TYPE_CHECKING:
    import pyarrow as pa

#: Superseded rows are dropped when the collected rows reach this size. The next time comes at twice the size that is
#: left, but not below this size.
PASS_BYTES = 64 * 1024 * 1024
_IDENTITY = ("topic", "partition", "key")
PartitionKey = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Files to merge into one, or into one for each set of columns that they have.

    ``paths``: files of the table or staged files. ``later``: the staged files with later records. ``target``: the file
    to write. ``is_new``: ``paths`` are staged, and their deletes are left out. ``size``: bytes of ``paths``, 0 for
    staged files.
    """

    paths: tuple[str, ...]
    later: tuple[str, ...]
    target: str
    is_new: bool
    size: int = 0
    store: TableStore = LOCAL


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of a merge, each file with its number of rows.

    ``stays``: paths of the files that stay as they are; ``written``: names of the files that replace the others.
    """

    stays: tuple[tuple[str, int], ...]
    written: tuple[tuple[str, int], ...]


class LatestRows:
    """Collector of the last row of each key, in the order of offsets."""

    def __init__(self) -> None:
        self.largest_timestamp = -1
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self._limit = PASS_BYTES

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows that have a key. Their offsets follow those of all rows before."""
        self._batches.append(batch)
        self._size += batch.nbytes
        if self._size >= self._limit:
            self._reduce()
            self._limit = max(PASS_BYTES, 2 * self._size)

    def batches(self) -> list[pa.RecordBatch]:
        """Return the last row of each key."""
        self._reduce()
        return self._batches

    def _reduce(self) -> None:
        self._batches = _last_of_each_key(self._batches)
        self._size = sum(batch.get_total_buffer_size() for batch in self._batches)


def _last_of_each_key(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    import pyarrow as pa

    if not batches:
        return []
    keys = pa.chunked_array([batch.column("key") for batch in batches])
    numbered = pa.table({"key": keys, "row": np.arange(len(keys))})
    last = numbered.group_by("key", use_threads=False).aggregate([("row", "max")]).column("row_max").to_numpy()
    if len(last) == len(keys):
        return batches
    stays = np.zeros(len(keys), np.bool_)
    stays[last] = True
    return [batch for batch in _select_rows(batches, stays) if batch.num_rows]


def _select_rows(batches: Iterable[pa.RecordBatch], stays: Any) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    begin = 0
    for batch in batches:
        yield batch.filter(pa.array(stays[begin : begin + batch.num_rows]))
        begin += batch.num_rows


def latest_rows(batches: Iterable[pa.RecordBatch], keyless: Callable[[pa.RecordBatch], None]) -> LatestRows:
    """Keep the last row of each key; ``keyless`` is called with rows that have no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = LatestRows()
    for batch in batches:
        if not batch.num_rows:
            continue
        latest: Any = pc.max(batch.column("timestamp").cast(pa.int64()))
        found.largest_timestamp = max(found.largest_timestamp, latest.as_py() // 1000)
        if batch.column("key").null_count:
            has_key: Any = batch.column("key").is_valid()
            keyless(batch.filter(pc.invert(has_key)))
            batch = batch.filter(has_key)
        found.add(batch)
    return found


# ---- merging


def merge_files(plan: MergePlan) -> MergeResult:
    """Write the rows of ``plan.paths`` whose key is in no later file, one file for each set of columns. Raises
    JobError, OSError.
    """
    gone = _keys_of(plan)
    masks = {path: _find_remaining(path, gone, plan) for path in plan.paths}
    stays, written = list[tuple[str, int]](), list[tuple[str, int]]()
    for number, paths in enumerate(_with_equal_columns(plan)):
        rows = sum(int(masks[path].sum()) for path in paths)
        if len(paths) == 1 and rows == len(masks[paths[0]]):
            stays.append((paths[0], rows))
        elif rows:
            stem, ending = os.path.splitext(plan.target)
            target = f"{stem}{f'-{number}' if number else ''}{plan.store.attempt_suffix()}{ending}"
            _write(replace(plan, paths=paths, target=target), [masks[path] for path in paths])
            written.append((os.path.basename(target), rows))
    return MergeResult(tuple(stays), tuple(written))


def _with_equal_columns(plan: MergePlan) -> list[tuple[str, ...]]:
    """Group the files by their columns: another writer may have added columns or field ids."""
    import pyarrow.parquet as pq

    groups: list[tuple[pa.Schema, list[str]]] = []
    for path in plan.paths:
        with name_unreadable(path):
            columns = _remove_views(pq.read_schema(plan.store.open_input(path))).remove_metadata()
        known = next((paths for schema, paths in groups if schema.equals(columns, check_metadata=True)), None)
        if known is None:
            groups.append((columns, [path]))
        else:
            known.append(path)
    return [tuple(paths) for _, paths in groups]


def _write(plan: MergePlan, masks: list[Any]) -> None:
    import pyarrow.parquet as pq

    first = _remove_views(pq.read_schema(plan.store.open_input(plan.paths[0])))
    writer = RowWriter(plan.target, first, {}, plan.store)
    with writer.give_up_on_error():
        for path, stays in zip(plan.paths, masks, strict=True):
            writer.write(_select_rows(_read_batches(path, first, plan.store), stays))
        writer.close()


def _read_batches(path: str, schema: pa.Schema, store: TableStore) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the types of ``schema``. Raises JobError."""
    import pyarrow.parquet as pq

    with ExitStack() as opened:
        with name_unreadable(path):
            batches = opened.enter_context(pq.ParquetFile(store.open_input(path))).iter_batches()
        while True:
            with name_unreadable(path):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch.cast(schema)


def _remove_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema without view types, whose rows PyArrow cannot select; deltalake's deletes and updates write
    them."""
    import pyarrow as pa

    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema], schema.metadata)


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa

    def convert(field: Any) -> Any:
        return field.with_type(_plain_type(field.type))

    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(convert(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(convert(kind.key_field), convert(kind.item_field))
    return pa.struct([convert(field) for field in kind]) if pa.types.is_struct(kind) else kind


def _keys_of(plan: MergePlan) -> dict[PartitionKey, Any]:
    """Collect the keys of the later files, by topic and partition. Each file has rows of a single partition."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[PartitionKey, list[Any]] = {}
    for path in plan.later:
        with name_unreadable(path):
            table = pq.read_table(plan.store.open_input(path), columns=list(_IDENTITY), partitioning=None)
        if table.num_rows:
            partition = table.column("topic")[0].as_py(), table.column("partition")[0].as_py()
            found.setdefault(partition, []).extend(table.column("key").chunks)
    return {partition: pa.chunked_array(keys, pa.binary()) for partition, keys in found.items()}


def _find_remaining(path: str, gone: dict[PartitionKey, Any], plan: MergePlan) -> Any:
    """Compute which rows of a file remain: a numpy array of booleans. ``gone``: the keys that have later records."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = [*_IDENTITY, "value"] if plan.is_new else list(_IDENTITY)
    with name_unreadable(path):
        table = pq.read_table(plan.store.open_input(path), columns=columns, partitioning=None)
    table = table.cast(_remove_views(table.schema))
    stays = np.ones(table.num_rows, np.bool_)
    if plan.is_new:
        stays &= table.column("value").is_valid().to_numpy()
    for (topic, partition), keys in gone.items():
        is_there: Any = pc.and_(pc.equal(table.column("topic"), topic), pc.equal(table.column("partition"), partition))
        if pc.any(is_there).as_py():
            has_key: Any = pc.is_in(table.column("key"), value_set=keys)
            stays &= ~pc.and_(is_there, has_key).fill_null(False).to_numpy()
    return stays
