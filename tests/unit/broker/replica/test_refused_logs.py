"""Starts of a broker with one log that is refused, for every kind of error that its opening has: the others are
served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.logs import marker
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.log.files.checkpoints import CLEAN_SHUTDOWN_FILE, write_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    InvalidRecordError,
    KafkaError,
    KafkaStorageError,
)
from tidelog.protocol.record.crc import crc32c

Damage = Callable[[Path], object]
LOG = f"{0:020d}.log"


def append_malformed_marker(directory: Path) -> None:
    """Append a marker of a foreign writer: its checksum is right, and its record has more bytes than it says."""
    batch = marker(7, commit=True)
    batch[:8] = (2).to_bytes(8, "big")
    batch[-1:] = b"\x7f"
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    with (directory / LOG).open("ab") as file:
        file.write(batch)


def write_other_id(directory: Path) -> None:
    """Give the directory the id of another topic."""
    write_partition_metadata(OsFileSystem(), str(directory), b"o" * 16, sync=True)


def cut_synced_end(directory: Path) -> None:
    """Cut the last byte of records that were synced."""
    content = (directory / LOG).read_bytes()
    (directory / LOG).write_bytes(content[:-1])


def make_directory_of_segment(directory: Path) -> None:
    """Put a directory in the place of the segment."""
    (directory / LOG).unlink()
    (directory / LOG).mkdir()


def add_foreign_segment(directory: Path) -> None:
    """Add a segment whose name is no offset."""
    (directory / "copy.log").touch()


@pytest.mark.parametrize("is_member", [True, False], ids=["member", "lone node"])
@pytest.mark.parametrize(
    ("damage", "clean"),
    [
        (append_malformed_marker, False),
        (write_other_id, True),
        (write_other_id, False),
        (cut_synced_end, True),
        (cut_synced_end, False),
        (make_directory_of_segment, True),
        (make_directory_of_segment, False),
        (add_foreign_segment, True),
        (add_foreign_segment, False),
    ],
)
def test_a_start_with_a_refused_log_serves_the_others(
    tmp_path: Path, damage: Damage, clean: bool, is_member: bool
) -> None:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 3)
    for index in range(3):
        data.append("t", b"a", b"b", partition=index)
    data.close()
    if not clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    damage(tmp_path / "t-1")
    data = DataBroker(tmp_path)
    if is_member:
        data.replica_manager.make_logs(data.broker.metadata.topics["t"], range(3))()
    for index in (0, 2):
        assert data.append("t", b"c", partition=index) == 2
    with pytest.raises((KafkaStorageError, InconsistentTopicIdError)):
        data.append("t", b"c", partition=1)
    assert list(data.log_manager.refused) == [TopicPartition("t", 1)]
    data.close()


@pytest.mark.parametrize(
    "error", [CorruptMessageError, InvalidRecordError, InconsistentTopicIdError, KafkaStorageError]
)
def test_a_member_opens_the_other_logs_whatever_the_error_of_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError]
) -> None:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 3)
    data.close()
    data = DataBroker(tmp_path)
    real = data.log_manager._open
    monkeypatch.setattr(
        data.log_manager, "_open", lambda one, *rest: real(one, *rest) if one.partition != 1 else fail(error)
    )
    data.replica_manager.make_logs(data.broker.metadata.topics["t"], range(3))()
    assert [log.topic_partition.partition for log in data.log_manager.open_logs()] == [0, 2]
    data.close()


def fail(error: type[KafkaError]) -> None:
    """Raise the error."""
    raise error
