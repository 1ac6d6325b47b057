"""Share groups on a full disk (fault F8 of docs/internals/faults.md): acknowledgements to a running broker, over a
restart, and when sessions end. Acknowledgements that were answered stay, nothing else is lost, and members continue
when there is free space."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.broker import TidelogProcess
from tests.support.raw_requests import create, produced
from tests.support.share_client import ACCEPT, RELEASE, Run, ShareClient, read_from_earliest
from tests.support.small_disk import SmallDisk
from tidelog.client import Client
from tidelog.protocol.errors import KafkaStorageError, NotCoordinatorError
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

DISK_BYTES = 24 << 20
RECORDS = 600
LIMIT_S = 60.0
REFUSALS = {KafkaStorageError.code, NotCoordinatorError.code, 15}
"""The last one: COORDINATOR_NOT_AVAILABLE."""
OVERRIDES = {
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.segment.bytes": "1048576",
    "group.share.delivery.count.limit": "10",
    "group.share.record.lock.duration.ms": "60000",
}


class SharedTopic:
    """A topic of one partition on a small disk, its broker and its group."""

    def __init__(self, process: TidelogProcess, disk: SmallDisk) -> None:
        self.process, self.disk = process, disk
        self.confirmed: set[int] = set()
        create(process.port, "t")
        with Client(process.bootstrap) as client:
            read_from_earliest(client, "g")
            found = client.send(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse, 12)
        self.topic_id = bytes(found.topics[0].topic_id)
        for number in range(RECORDS):
            assert produced(process.port, "t", b"%d" % number) == (0, number)

    def member(self, client: Client, name: str) -> ShareClient:
        """Return a member that has joined."""
        member = ShareClient(client, "g", ("t", self.topic_id), name)
        member.join()
        return member

    def accept(self, member: ShareClient, first: int, last: int) -> bool:
        """Accept records; return whether that was confirmed."""
        code = member.acknowledge(first, last, ACCEPT)
        if code == 0:
            self.confirmed |= set(range(first, last + 1))
        else:
            assert code in REFUSALS, code
        return code == 0

    def take(self, member: ShareClient, runs: list[Run]) -> None:
        """Accept what was fetched, of which nothing may have been confirmed before."""
        for run in runs:
            offsets = set(range(run.first, run.last + 1))
            assert not offsets & self.confirmed, f"{offsets & self.confirmed} are delivered again"
            assert self.accept(member, run.first, run.last)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedTopic]:
    directory = tmp_path / "broker"
    with SmallDisk(directory / "data", DISK_BYTES) as disk:
        process = TidelogProcess(directory, OVERRIDES)
        with process:
            yield SharedTopic(process, disk)
            process.kill()
            assert "Traceback" not in process.output()


def accept_until_refused(shared: SharedTopic, member: ShareClient, run: Run) -> int:
    """Accept every other record by itself, for small states that cannot be joined; the first that is refused."""
    for offset in range(run.first, run.last + 1, 2):
        if not shared.accept(member, offset, offset):
            return offset
    raise AssertionError("a full disk took every state")


@pytest.mark.parametrize("then", ["goes on", "session ends", "killed", "stopped"])
def test_a_full_disk_confirms_no_acknowledgement(shared: SharedTopic, then: str) -> None:
    with Client(shared.process.bootstrap) as client:
        member = shared.member(client, "first")
        (run,) = member.fetch(max_records=RECORDS)
        assert shared.accept(member, run.first, run.first + 1)
        assert member.acknowledge(run.first + 2, run.first + 2, RELEASE) == 0
        shared.disk.fill()
        refused = accept_until_refused(shared, member, Run(run.first + 3, run.last, 1))
        assert not shared.accept(member, refused, refused)
        if then == "goes on":
            shared.disk.make_room()
            accept_once_there_is_room(shared, member, refused)
    if then in ("killed", "stopped"):
        shared.process.kill() if then == "killed" else shared.process.terminate()
        shared.process.start()
    shared.disk.make_room()
    read_the_rest(shared)


@pytest.mark.parametrize("then", ["goes on", "killed"])
def test_a_group_that_begins_on_a_full_disk_reads_once_there_is_free_space(shared: SharedTopic, then: str) -> None:
    shared.disk.fill()
    with Client(shared.process.bootstrap) as client:
        beat = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"])
        assert client.send(beat, ShareGroupHeartbeatResponse, 1).error_code in REFUSALS
    if then == "killed":
        shared.process.kill()
        shared.process.start()
    shared.disk.make_room()
    read_the_rest(shared)


def accept_once_there_is_room(shared: SharedTopic, member: ShareClient, offset: int) -> None:
    """Accept a record, which the member holds still, once there is room."""
    deadline = time.monotonic() + LIMIT_S
    while not shared.accept(member, offset, offset):
        assert time.monotonic() < deadline, "acknowledgements are refused though there is room"
        time.sleep(0.05)


def try_to_join(shared: SharedTopic, client: Client) -> ShareClient | None:
    """Join as a member; return None if the broker refuses it because it has not noticed the free space yet."""
    with suppress(AssertionError):
        return shared.member(client, "second")
    return None


def read_the_rest(shared: SharedTopic) -> None:
    """Check that another member gets exactly the records that were not confirmed."""
    with Client(shared.process.bootstrap) as client:
        deadline = time.monotonic() + LIMIT_S
        while (member := try_to_join(shared, client)) is None:
            assert time.monotonic() < deadline, "no member can join though there is room"
            time.sleep(0.05)
        while len(shared.confirmed) < RECORDS:
            assert time.monotonic() < deadline, f"{RECORDS - len(shared.confirmed)} records are not delivered"
            shared.take(member, member.fetch(max_records=RECORDS, max_wait_ms=200))
        assert not member.fetch(max_wait_ms=200)
