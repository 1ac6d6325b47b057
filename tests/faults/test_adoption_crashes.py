"""``tidelog adopt`` with a kill or a power loss at every step: nothing or everything is adopted, and a second run
completes it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.faulty_file_system import DiskImage, FaultyFileSystem
from tests.support.kafka_directories import KafkaDirectory
from tests.support.logs import NOW_MS
from tidelog.broker.adoption.adopt import UnsyncedError, carry_out
from tidelog.broker.adoption.plan import AdoptionError, AdoptionOptions, make_plan
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image
from tidelog.log.check import check_directory
from tidelog.log.files.checkpoints import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE, read_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.records import PartitionRecord, TopicRecord
from tidelog.protocol.schema.fields import Message

TOPICS = {"orders": bytes(15) + b"\1", "refunds": bytes(15) + b"\2"}
RECORDS = 30
TIME = ManualTime(NOW_MS)


@pytest.fixture(scope="module", params=["stopped", "killed"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = KafkaDirectory(tmp_path_factory.mktemp("source") / "kafka")
    records: list[tuple[Message, int]] = []
    for name, topic_id in TOPICS.items():
        directory.add_partition(name, 0, topic_id, batches=RECORDS)
        records += [(TopicRecord(name=name, topic_id=topic_id), 0)]
        records += [(PartitionRecord(partition_id=0, topic_id=topic_id), 0)]
    directory.add_metadata(records)
    if request.param == "killed":
        directory.kill()
    return directory.path


def adopt(disk: FileSystem, source: Path, data: Path) -> None:
    plan = make_plan(disk, TIME, AdoptionOptions((str(source),), str(data)))
    try:
        assert plan.problems == []
        carry_out(disk, TIME, plan, lambda _: None)
    finally:
        plan.close()


def shown(data: Path) -> set[str]:
    """Return the topics of the metadata log, after a check that each has a valid directory."""
    if not (data / METADATA_DIRECTORY).exists():
        return set()
    names = set(read_metadata_image(OsFileSystem(), str(data / METADATA_DIRECTORY)).topic_ids)
    for name in names:
        assert check_directory(OsFileSystem(), str(data / f"{name}-0")) == []
    return names


def assert_whole(data: Path) -> None:
    assert shown(data) == set(TOPICS)
    ends = read_offset_checkpoint(OsFileSystem(), str(data / RECOVERY_POINT_FILE))
    assert ends == {TopicPartition(name, 0): RECORDS for name in TOPICS}


class Remains:
    """The disks that faults have left of an adoption. What each shows is looked at, and it is completed, once."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._shown: dict[DiskImage, set[str]] = {}

    def complete(self, image: DiskImage, root: Path) -> set[str]:
        """Return the topics that ``root`` shows, after a check that a second run completes it. ``image`` is all that it
        has; many faults leave the same."""
        if image not in self._shown:
            found = shown(root / "data")
            adopt(OsFileSystem(), self._source, root / "data")
            assert_whole(root / "data")
            self._shown[image] = found
        return self._shown[image]


@pytest.fixture(scope="module")
def remains(source: Path) -> Remains:
    """The remains of this source's adoptions."""
    return Remains(source)


def steps(source: Path, root: Path) -> int:
    root.mkdir()
    disk = FaultyFileSystem(str(root))
    adopt(disk, source, root / "data")
    return len(disk.calls)


@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power-loss"])
def test_killed_at_every_step(source: Path, remains: Remains, tmp_path: Path, power_loss: bool) -> None:
    (tmp_path / "killed").mkdir()
    disk = FaultyFileSystem(str(tmp_path / "killed"))
    take = disk.image if power_loss else disk.page_cache
    images = disk.at_each_call(lambda: adopt(disk, source, tmp_path / "killed" / "data"), take)
    assert len(images) > 50
    was_clean = (source / CLEAN_SHUTDOWN_FILE).exists()
    for number in range(2 * power_loss + was_clean, len(images), 4):  # each step has its turn in one of the four tests
        root = tmp_path / str(number)
        images[number].write(root)
        assert remains.complete(images[number], root) in (set(), set(TOPICS)), f"at step {number}"


def test_power_lost_after_the_end(source: Path, tmp_path: Path) -> None:
    disk = FaultyFileSystem(str(tmp_path))
    adopt(disk, source, tmp_path / "data")
    disk.crash()
    assert_whole(tmp_path / "data")
    assert (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).exists()


def test_a_full_disk_shows_nothing_and_a_later_run_does(source: Path, tmp_path: Path) -> None:
    refused = 0
    numbers = range(steps(source, tmp_path / "count") // 3, steps(source, tmp_path / "again"), 9)
    for number in numbers:
        root = tmp_path / str(number)
        root.mkdir()
        disk = FaultyFileSystem(str(root))
        disk.fail_at[number] = errno.ENOSPC
        try:
            adopt(disk, source, root / "data")
        except (AdoptionError, KafkaStorageError, UnsyncedError):
            refused += 1
            if shown(root / "data") == set():  # or all: what failed then is the end, after the one commit
                adopt(disk, source, root / "data")
        assert_whole(root / "data")
    assert refused > len(numbers) / 2


@pytest.mark.parametrize("power_loss", [False, True], ids=["no power loss", "power loss"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_is_reported_as_what_it_left(
    source: Path, remains: Remains, tmp_path: Path, error: int, power_loss: bool
) -> None:
    """Nothing was taken over, or all, or it is unknown; the next run goes on in each case."""
    outcomes = set()
    total = steps(source, tmp_path / "count")
    for number in {*range(total % 5, total, 5), *range(total - 25, total)}:
        root = tmp_path / str(number)
        root.mkdir()
        disk = FaultyFileSystem(str(root), number)
        disk.fail_at[number] = error
        outcome = "all"
        try:
            adopt(disk, source, root / "data")
        except UnsyncedError:
            outcome = "unknown"
        except (AdoptionError, KafkaStorageError):
            outcome = "nothing"
        outcomes.add(outcome)
        if power_loss:
            disk.crash(torn=True, keep_names=number % 2 == 0)
        whole = set(TOPICS)
        possible: dict[str, list[set[str]]] = {"all": [whole], "nothing": [set()], "unknown": [set(), whole]}
        assert remains.complete(disk.page_cache(), root) in possible[outcome], f"{outcome} at step {number}"
    assert outcomes == {"all", "nothing", "unknown"}
