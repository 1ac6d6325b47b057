"""Cost of a stream's trigger, in directories listed and files opened; its results are correct after any change."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, write
from tidelog.log.files.checkpoints import LOG_START_OFFSET_FILE, write_offset_checkpoint, write_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.errors import SelectionError
from tidelog.pipeline.files.stamps import SETTLED_S
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.plan.log_watch import LogWatch
from tidelog.protocol.record.record_batch import Record

OTHERS = 200
_counting: list[tuple[str, Counter[str]]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if not _counting or event not in ("open", "os.listdir", "os.scandir"):
        return
    root, found = _counting[-1]
    if str(arguments[0]).startswith(root):
        found[f"{event} {arguments[0]}"] += 1


@cache
def _install() -> None:
    """Install the audit hook, which no process gets rid of: each later call of ``open`` or ``id`` takes longer."""
    sys.addaudithook(_audit)


@contextmanager
def counted(data: DataDirectory) -> Iterator[Counter[str]]:
    """Files opened and directories listed meanwhile, below the data directory."""
    _install()
    found: Counter[str] = Counter()
    _counting.append((str(data.path), found))
    try:
        yield found
    finally:
        _counting.pop()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    made = DataDirectory(tmp_path)
    yield made
    made.close()


def add(data: DataDirectory, topic: str, partition: int, records: int = 3) -> None:
    """Append records to the end of a log."""
    write(data.log(topic, partition), [Record(i, NOW_MS, b"k", b"v") for i in range(records)])


def age(path: Path) -> None:
    """Set an old time of change for the directory, as if nothing had happened for ``SETTLED_S``."""
    before = path.stat().st_mtime - 10 * SETTLED_S
    os.utime(path, (before, before))


def settled(data: DataDirectory) -> None:
    """Set an old time of change for all directories."""
    for path in (data.path, *data.path.iterdir()):
        if path.is_dir():
            age(path)


def remove(data: DataDirectory, topic: str, partition: int) -> None:
    """Remove the partition's directory."""
    data.logs.pop(TopicPartition(topic, partition)).close()
    shutil.rmtree(data.path / f"{topic}-{partition}")


def watch(data: DataDirectory, **options: str) -> LogWatch:
    return LogWatch(parse_options({"path": str(data.path), **options}, streaming=True))


def ends(watching: LogWatch) -> dict[str, int]:
    return {f"{p.directory.topic}-{p.directory.partition}": p.end for p in watching.partitions()}


@pytest.fixture
def crowded(data: DataDirectory) -> DataDirectory:
    """Two partitions with records and many of other topics."""
    for number in range(OTHERS):
        directory = data.path / f"other-{number}"
        directory.mkdir()
        (directory / "partition.metadata").write_text("version: 0\ntopic_id: AQEBAQEBAQEBAQEBAQEBAQ\n")
        (directory / f"{0:020d}.log").touch()
    for partition in (0, 1):
        add(data, "t", partition)
        write_partition_metadata(OsFileSystem(), str(data.path / f"t-{partition}"), b"\2" * 16)
    starts = {TopicPartition("t", 0): 0, **{TopicPartition("other", number): 0 for number in range(OTHERS)}}
    write_offset_checkpoint(OsFileSystem(), str(data.path / LOG_START_OFFSET_FILE), starts)
    settled(data)
    return data


@pytest.mark.parametrize(
    "choice", [{"subscribe": "t"}, {"assign": '{"t":[0,1]}'}, {"subscribePattern": "t.*"}], ids=lambda c: next(iter(c))
)
def test_a_trigger_in_which_nothing_happened_opens_and_lists_nothing(
    crowded: DataDirectory, choice: dict[str, str]
) -> None:
    watching = watch(crowded, **choice)
    with counted(crowded) as first:
        assert ends(watching) == {"t-0": 3, "t-1": 3}
    assert not [what for what in first if f"{crowded.path}/other" in what]
    assert first[f"os.listdir {crowded.path}"] == (0 if "assign" in choice else 1)
    with counted(crowded) as second:
        assert ends(watching) == {"t-0": 3, "t-1": 3}
    assert second == {}


def test_a_trigger_opens_only_files_of_changed_partitions(crowded: DataDirectory) -> None:
    watching = watch(crowded, subscribe="t")
    ends(watching)
    add(crowded, "t", 1)
    with counted(crowded) as found:
        assert ends(watching) == {"t-0": 3, "t-1": 6}
    assert found.total() > 0
    assert all(f"{crowded.path}/t-1" in what for what in found)


def test_the_checkpoint_is_read_once_and_again_when_it_is_another(crowded: DataDirectory) -> None:
    watching = watch(crowded, subscribe="t")
    path = crowded.path / LOG_START_OFFSET_FILE
    with counted(crowded) as found:
        assert [p.bounds.start for p in watching.partitions()] == [0, 0]
    assert found[f"open {path}"] == 1
    write_offset_checkpoint(OsFileSystem(), str(path), {TopicPartition("t", 1): 2})
    assert [p.bounds.start for p in watching.partitions()] == [0, 2]


def test_partitions_that_come_and_go_are_seen_at_once(crowded: DataDirectory) -> None:
    watching = watch(crowded, subscribePattern="t|u")
    assert ends(watching) == {"t-0": 3, "t-1": 3}
    add(crowded, "u", 7)
    assert ends(watching) == {"t-0": 3, "t-1": 3, "u-7": 3}
    add(crowded, "t", 2)  # within the same tick perhaps
    assert ends(watching) == {"t-0": 3, "t-1": 3, "t-2": 3, "u-7": 3}
    remove(crowded, "t", 1)
    assert ends(watching) == {"t-0": 3, "t-2": 3, "u-7": 3}
    settled(crowded)
    assert ends(watching) == ends(watching) == {"t-0": 3, "t-2": 3, "u-7": 3}


def test_a_topic_created_again_shows_its_id(crowded: DataDirectory) -> None:
    watching = watch(crowded, assign='{"t":[0]}')
    assert [p.directory.topic_id for p in watching.partitions()] == [b"\2" * 16]
    directory = crowded.path / "t-0"
    remove(crowded, "t", 0)
    with pytest.raises(SelectionError, match="partition t-0 is not below"):
        watching.partitions()
    directory.mkdir()
    write_partition_metadata(OsFileSystem(), str(directory), b"\3" * 16)
    (found,) = watching.partitions()
    assert (found.directory.topic_id, found.bounds) == (b"\3" * 16, (0, 0, 0))


def test_rolls_and_deleted_segments_are_seen(crowded: DataDirectory) -> None:
    watching = watch(crowded, subscribe="t")
    log = crowded.log("t", 0)
    for expected in (6, 9, 12):
        log.roll()
        age(crowded.path / "t-0")
        add(crowded, "t", 0)
        assert ends(watching) == ends(watching) == {"t-0": expected, "t-1": 3}
    (crowded.path / "t-0" / f"{0:020d}.log").unlink()
    assert [p.bounds.start for p in watching.partitions()] == [3, 0]


def test_an_assigned_partition_that_is_missing_among_strangers_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(SelectionError, match=r"is not a Kafka data directory: expected meta\.properties"):
        LogWatch(parse_options({"path": str(tmp_path), "assign": '{"t":[0]}'})).partitions()
