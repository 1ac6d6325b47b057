"""Readers of TABLE/data during an export: each row at most once at every moment, and no row that was there is
missing."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines import DataDirectory, end_transaction, fill
from tidelog.pipeline.export import codecs as export_codecs
from tidelog.pipeline.export import parquet as export_parquet
from tidelog.pipeline.jobs.export import ExportRequest, export

STEPS = ("replace", "rename", "link", "unlink", "mkdir", "rmdir")
"""What changes a directory."""
PARTITIONS = 2
Row = tuple[str, int, int]


class Killed(BaseException):
    """The simulated end of the process at a step of the run."""


@dataclass(slots=True)
class Seen:
    """Files that a reader saw when it began: names, sizes, footers and rows."""

    sizes: dict[Path, int] = field(default_factory=dict)
    footers: dict[Path, pq.FileMetaData] = field(default_factory=dict)
    rows: dict[Path, list[Row]] = field(default_factory=dict)

    @classmethod
    def now(cls, folder: Path) -> Seen:
        """Begin to read: list, open, plan and read every file."""
        seen = cls()
        for path in sorted(folder.glob("*.parquet")):
            seen.sizes[path] = path.stat().st_size
            seen.footers[path] = pq.read_metadata(path)
            seen.rows[path] = rows_of(pq.ParquetFile(path))
        return seen

    def counted(self) -> Counter[Row]:
        """Count how often each row was seen."""
        return Counter(itertools.chain.from_iterable(self.rows.values()))

    def check_later(self) -> None:
        """Check a reader that had listed, measured or planned the files then, and reads them now."""
        for path, rows in self.rows.items():
            content = path.read_bytes()
            assert rows_of(pq.ParquetFile(pa.BufferReader(content[: self.sizes[path]]))) == rows, "of the size it had"
            assert rows_of(pq.ParquetFile(path, metadata=self.footers[path])) == rows, "by the footer it had"
            assert rows_of(pq.ParquetFile(path))[: len(rows)] == rows, "by the name it had"


def state_of(folder: Path) -> list[tuple[str, int, int, int]]:
    """Return name, inode, size and time of the last change of each file: two equal states hold the same rows."""
    entries = [(entry.name, entry.stat()) for entry in os.scandir(folder)] if folder.exists() else []
    return sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in entries)


def rows_of(file: pq.ParquetFile) -> list[Row]:
    with file:
        found = file.read(["topic", "partition", "offset", "value"])
    return list(zip(*(found.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True))


@dataclass(slots=True)
class World:
    """A log that grows, a table, and what was written."""

    data: DataDirectory
    table: Path
    written: set[Row] = field(default_factory=set)
    random: random.Random = field(default_factory=lambda: random.Random(20_261_122))

    @property
    def folder(self) -> Path:
        return self.table / "data"

    def grow(self) -> None:
        """Append records to some of the partitions."""
        for partition in range(PARTITIONS):
            batches = self.random.choice((0, 1, 3, 12))
            for record in fill(self.data.log("t", partition), batches, compression=self.random.choice((0, 4))):
                self.written.add(("t", partition, record.offset))

    def export(self) -> None:
        export(None, ExportRequest(self.data.source(), str(self.table), file_bytes=6000))

    def check(self) -> Seen:
        """Read the folder like any reader of Parquet."""
        seen = Seen.now(self.folder)
        counted = seen.counted()
        assert set(counted) <= self.written
        assert max(counted.values(), default=1) == 1
        return seen

    def check_whole(self) -> None:
        assert set(self.check().counted()) == self.written


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    data = DataDirectory(tmp_path / "data")
    yield World(data, tmp_path / "table")
    data.close()


@contextmanager
def at_steps(monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> Iterator[None]:
    """Within the ``with`` block, ``look`` is called before and after every change of a directory."""

    def stepping(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            look()
            result = real(*arguments, **options)
            look()
            return result

        return step

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, stepping(getattr(os, name)))
        yield


def test_readers_that_begin_at_any_moment_see_each_row_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Seen] = []
    states: list[list[tuple[str, int, int, int]]] = []

    def look() -> None:
        state = state_of(world.folder)
        if states[-1:] == [state]:
            return  # all that a reader could see was seen before
        states.append(state)
        seen = world.check()
        if begun and seen.sizes == begun[-1].sizes:
            return
        if begun:
            assert set(begun[-1].counted()) <= set(seen.counted())
        for earlier in begun:
            earlier.check_later()
        begun.append(seen)

    for _ in range(8):
        world.grow()
        with at_steps(monkeypatch, look):
            world.export()
        world.check_whole()
    assert len(begun) > 8
    grown = {path for path in begun[-1].sizes if len({seen.sizes[path] for seen in begun if path in seen.sizes}) > 1}
    assert grown, "no file has grown: nothing was tried"


def killed_at(step: int) -> Callable[[], None]:
    """Return a function that kills the run before or after one of its steps."""
    steps = itertools.count()

    def look() -> None:
        if next(steps) == step:
            raise Killed

    return look


def test_a_run_killed_at_each_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = 0
    for step in itertools.count():
        world.grow()
        before = set(world.check().counted())
        try:
            with at_steps(monkeypatch, killed_at(step)):
                world.export()
            break
        except Killed:
            kills += 1
        assert before <= set(world.check().counted())
    assert kills > 10
    world.check_whole()


def test_a_reader_that_never_rests_sees_each_row_once(world: World) -> None:
    world.data.log("t")
    world.export()
    done = threading.Event()

    def read() -> int:
        times = 0
        while not done.is_set():
            paths = sorted(world.folder.glob("*.parquet"))
            counted = Counter(row for path in paths for row in rows_of(pq.ParquetFile(path)))
            assert max(counted.values(), default=1) == 1
            times += 1
        return times

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            for _ in range(25):
                world.grow()
                world.export()
        finally:
            done.set()
        assert reader.result() > 1
    world.check_whole()


def test_a_file_that_has_the_most_row_groups_is_not_extended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_parquet, "MAX_ROW_GROUPS", 3)
    for number in range(7):
        fill(world.data.log("t"), 1)
        export(None, ExportRequest(world.data.source(), str(world.table)))
        groups = [pq.read_metadata(path).num_row_groups for path in sorted(world.folder.glob("*.parquet"))]
        assert groups == [3] * ((number + 1) // 3) + [(number + 1) % 3] * ((number + 1) % 3 > 0)


def test_a_file_whose_bytes_come_out_otherwise_stays_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of PyArrow may write the same rows as other bytes."""
    written = fill(world.data.log("t"), 2)
    world.export()
    (first,) = world.folder.glob("*.parquet")
    content = first.read_bytes()
    monkeypatch.setattr(export_codecs, "ZSTD_LEVEL", 9)
    written += fill(world.data.log("t"), 2)
    world.export()
    assert first.read_bytes() == content
    assert [row[2] for path in sorted(world.folder.glob("*.parquet")) for row in rows_of(pq.ParquetFile(path))] == [
        record.offset for record in written
    ]


def test_a_file_that_gets_no_rows_covers_more_offsets_and_grows_later(world: World) -> None:
    log = world.data.log("t")
    fill(log, 1)
    world.export()
    fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 5, commit=False)
    world.export()
    fill(log, 1)
    world.export()
    (path,) = world.folder.glob("*.parquet")
    assert [row[2] for row in rows_of(pq.ParquetFile(path))] == [*range(5), *range(11, 16)]
