from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.laboratory import snapshots
from tidelog.broker.laboratory.server import LaboratoryServer
from tidelog.broker.laboratory.snapshots import ByteRange
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import NotCoordinatorError
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """A start sets its process's umask; a test's has it back."""
    mask = os.umask(0o022)
    yield
    os.umask(mask)


def test_a_member_of_a_cluster_has_no_laboratory(tmp_path: Path) -> None:
    texts = {
        "log.dirs": str(tmp_path), "node.id": "1", "process.roles": "broker",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1", "controller.listener.names": "CONTROLLER",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--laboratory: a member of a cluster"):
        LaboratoryServer(BrokerConfig(texts))


@pytest.mark.parametrize("command", ["snapshot", "restore"])
async def test_a_copy_that_fails_leaves_the_broker_running_on_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The copy fails in the middle, when some files are copied."""
    config = BrokerConfig(
        {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0", "admin.listener": ""}
    )
    laboratory = LaboratoryServer(config)
    await laboratory.start()
    try:
        notes = [tmp_path / "data" / name for name in ("one", "two")]
        write_all(notes, "before")
        assert await laboratory.snapshot() == 0
        copied = logs_below(tmp_path / "data")
        assert copied
        write_all(notes, "later.")
        calls, copy_range = 0, snapshots.copy_range

        def copy(source: int, content: ByteRange, target: int) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise OSError(ENOSPC, "no room")
            copy_range(source, content, target)

        monkeypatch.setattr(snapshots, "copy_range", copy)
        with pytest.raises(OSError, match="no room"):
            await (laboratory.snapshot() if command == "snapshot" else laboratory.restore(0))
        monkeypatch.undo()
        with socket.create_connection((laboratory.endpoints[0].host, laboratory.endpoints[0].port)):
            assert logs_below(tmp_path / "data") == copied
        assert [note.read_text() for note in notes] == ["later.", "later."]
        await laboratory.restore(0)
        assert [note.read_text() for note in notes] == ["before", "before"]
        assert await laboratory.snapshot() == 1
        assert logs_below(tmp_path / "data") == copied
    finally:
        await laboratory.stop()


async def test_a_defect_that_ends_a_control_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its commands got no answer any more, and nothing said why."""
    config = BrokerConfig(
        {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0", "admin.listener": ""}
    )
    laboratory = LaboratoryServer(config)

    async def fail() -> None:
        raise RuntimeError("a defect")

    laboratory.add_control(fail)
    laboratory.add_control(asyncio.Event().wait)
    await laboratory.start()
    await asyncio.sleep(0)
    await laboratory.stop()
    ended = [record for record in caplog.records if record.name == "tidelog.broker.laboratory.server"]
    assert [record.getMessage() for record in ended] == ["a defect ended a control of the laboratory"]
    assert ended[0].exc_info is not None


def write_all(paths: list[Path], text: str) -> None:
    for path in paths:
        path.write_text(text)


def logs_below(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*.log")}


async def test_a_coordinator_follows_the_leader_of_its_partition(tmp_path: Path) -> None:
    config = BrokerConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", "admin.listener": ""})
    laboratory = LaboratoryServer(config)
    await laboratory.start()
    try:
        groups = coordinators_of(laboratory.broker).groups
        context = RequestContext()
        context.api_version = 1
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=1_000, subscribed_topic_names=["t"],
            topic_partitions=[],
        )  # fmt: skip
        groups.consumer_group_heartbeat(context, request)
        partition = groups.runtime.partition_for("g")
        laboratory.move_leader("__consumer_offsets", partition, is_away=True)
        with pytest.raises(NotCoordinatorError):
            groups.runtime.shard_for("g")
        laboratory.move_leader("__consumer_offsets", partition, is_away=False)
        assert set(groups.runtime.shard_for("g").groups) == {"g"}
    finally:
        await laboratory.stop()
