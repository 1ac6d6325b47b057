"""The table of late services: nothing is built before it is needed, and each configuration or request that needs one
builds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.finding import catch_up
from tests.support.logs import batch
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.controller.clients.client_quotas import ClientQuotas, QuotaChange
from tidelog.broker.loop.lazy import Begin
from tidelog.broker.services import LateServices, wants_index
from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE, read_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.find.index_checkpoint import CHECKPOINT_FILE, KEYS_DIRECTORY, TAGS_DIRECTORY
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.system.file_system import OsFileSystem

QUIET = {"admin.listener": "", "log.cleaner.enable": "false", "offsets.topic.num.partitions": "1"}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path, QUIET)
    yield data
    data.stop_threads()
    data.close()


def built(data: DataBroker) -> set[str]:
    """Return the names of the services that are built."""
    services = data.broker.services
    return {name for name in LateServices.__slots__ if getattr(getattr(services, name), "made", None) is not None}


def begin(data: DataBroker, when: Begin | None = None) -> None:
    for service in data.broker.services.table():
        if when in (None, service.begins):
            service.begin_if_wanted()


def test_the_table_holds_every_service(data: DataBroker) -> None:
    services = data.broker.services
    assert {id(service) for service in services.table()} == {
        id(getattr(services, name)) for name in LateServices.__slots__ if not name.startswith("_")
    }


def test_a_plain_broker_builds_none(data: DataBroker) -> None:
    create_topic(data, "t")
    begin(data)
    assert built(data) == set()


def test_an_internal_topic_wants_the_coordinators(data: DataBroker) -> None:
    data.topics.ensure_internal_topic("__consumer_offsets")
    begin(data, Begin.NEXT_TURN)
    assert built(data) == {"coordinators"}


def test_a_quota_wants_the_quotas(data: DataBroker) -> None:
    changes = [QuotaChange("producer_byte_rate", 5.0)]
    ClientQuotas(data.broker.controller).alter((("client-id", "app"),), changes, validate_only=False)
    begin(data, Begin.BEFORE_CLIENTS)
    assert built(data) == {"quotas"}


def test_a_topic_with_an_index_wants_the_indexing(data: DataBroker) -> None:
    image = create_topic(data, "t", configs={"index.keys": "true"})
    assert wants_index(image)
    assert built(data) == {"indexing"}


def test_a_virtual_topic_wants_the_virtual_partitions(data: DataBroker) -> None:
    create_topic(data, "t", configs={"index.keys": "true"})
    data.replica_manager.partition("t?key=a", 0)
    assert "virtual_partitions" in built(data)


def test_a_deleted_partition_wants_the_cleaner_only_for_its_checkpoint(data: DataBroker, tmp_path: Path) -> None:
    data.broker.services.forget_cleaned(TopicPartition("t", 0))
    assert built(data) == set()
    (tmp_path / CLEANER_OFFSET_FILE).write_text("0\n1\nt 0 5\n")
    data.broker.services.forget_cleaned(TopicPartition("t", 0))
    assert built(data) == {"cleaner"}
    assert "t 0" not in (tmp_path / CLEANER_OFFSET_FILE).read_text()


def test_a_truncation_removes_the_checkpoints_of_indices_that_reach_beyond_it(data: DataBroker) -> None:
    create_topic(data, "t", configs={"index.keys": "true", "index.tag.header": "kind"})
    log = data.replica_manager.partition("t", 0).local_log
    for _ in range(4):
        log.append_as_leader(memoryview(batch(5)), leader_epoch=0)
    log.update_high_watermark(15)
    indexer = LogIndexer(log)
    indexer.configure()
    catch_up(indexer)
    indexer.checkpoint()
    paths = [Path(log.directory, name, CHECKPOINT_FILE) for name in (KEYS_DIRECTORY, TAGS_DIRECTORY)]
    for offset in (15, 10):
        log.truncate_to(offset)
        data.broker.services.lower_checkpoints(log)
        assert [path.exists() for path in paths] == [offset == 15] * 2


@pytest.mark.parametrize("runs", [False, True], ids=["no cleaner", "a cleaner"])
def test_a_truncation_lowers_the_cleaners_checkpoint(data: DataBroker, tmp_path: Path, runs: bool) -> None:
    """The broker may be killed before its cleaner starts, when the log has grown again."""
    create_topic(data, "t", configs={"cleanup.policy": "compact"})
    log = data.replica_manager.partition("t", 0).local_log
    for _ in range(4):
        log.append_as_leader(memoryview(batch(5)), leader_epoch=0)
    log.clean_bound = log.log_end_offset  # as when it is opened
    path = Path(log.directory).parent / CLEANER_OFFSET_FILE
    services = data.broker.services
    services.lower_checkpoints(log)
    assert not path.exists()
    path.write_text("0\n2\nother 0 3\nt 0 15\n")
    if runs:
        assert services.cleaner.get().manager.checkpoint.get(log) == 15
    services.lower_checkpoints(log)
    assert read_offset_checkpoint(OsFileSystem(), str(path))[TopicPartition("t", 0)] == 15
    log.truncate_to(10)
    services.lower_checkpoints(log)
    assert read_offset_checkpoint(OsFileSystem(), str(path)) == {
        TopicPartition("other", 0): 3,
        TopicPartition("t", 0): 10,
    }


def test_truncations_in_two_threads_lower_both_offsets(
    data: DataBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read the file before the other one had replaced it, or renamed its temporary file away."""
    create_topic(data, "t", 2, configs={"cleanup.policy": "compact"})
    logs = [data.replica_manager.partition("t", index).local_log for index in range(2)]
    path = Path(logs[0].directory).parent / CLEANER_OFFSET_FILE
    path.write_text("0\n2\nt 0 15\nt 1 15\n")
    for log in logs:
        log.clean_bound = 10
    other = threading.Thread(target=data.broker.services.lower_checkpoints, args=(logs[1],), daemon=True)
    replace = OsFileSystem.replace_file

    def begin_other_then_replace(self: OsFileSystem, *arguments: Any, **options: Any) -> None:
        if threading.current_thread() is not other and other.ident is None:
            other.start()
            other.join(0.2)
        replace(self, *arguments, **options)

    monkeypatch.setattr(OsFileSystem, "replace_file", begin_other_then_replace)
    data.broker.services.lower_checkpoints(logs[0])
    other.join()
    assert set(read_offset_checkpoint(OsFileSystem(), str(path)).values()) == {10}
