"""Leader and follower roles of a member's replicas, ISR changes that are proposed to the controller, and their
metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from tests.support.leaders import EPOCH
from tests.support.replicated import LED, ReplicatedBroker
from tidelog.broker.cluster.alter_partition import RETRY_MS, PartitionKey
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.member import roles
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.roles import CHECKED_PER_TURN
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.metrics.registry import Metrics
from tidelog.broker.replica.replication.leading import Leading, begin_leading
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol import errors
from tidelog.protocol.messages.alter_partition import (
    RECOVERED,
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicDataResponse,
)

ALONE = LED._replace(isr=(1,), partition_epoch=8)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ReplicatedBroker]:
    node = ReplicatedBroker(tmp_path)
    yield node
    node.close()


def answered(request: AlterPartitionRequest, error: int = 0) -> AlterPartitionResponse:
    """Answer as a controller that commits what it is asked for, or refuses it."""
    topics = [
        TopicDataResponse(
            topic_id=topic.topic_id,
            partitions=[
                PartitionDataResponse(
                    partition_index=one.partition_index,
                    error_code=error,
                    leader_id=1,
                    leader_epoch=one.leader_epoch,
                    isr=[member.broker_id for member in one.new_isr_with_epochs],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=one.partition_epoch + 1,
                )
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionResponse(topics=topics)


class ScriptedChannel:
    """A connection on which each answer is the next of a script; what follows the last one never comes."""

    script: ClassVar[list[Any]] = []
    asked: ClassVar[list[AlterPartitionRequest]] = []

    async def ask(self, _address: Address, request: AlterPartitionRequest, _kind: object) -> AlterPartitionResponse:
        self.asked.append(request)
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast(AlterPartitionResponse, answer(request))


def test_isr_changes_are_asked_for_until_they_are_decided(node: ReplicatedBroker) -> None:
    ScriptedChannel.asked = []
    ScriptedChannel.script = [
        ChannelError("gone"),
        lambda _: AlterPartitionResponse(error_code=errors.NotControllerError.code),
        lambda request: answered(request, errors.IneligibleReplicaError.code),
        answered,
    ]
    node.partition.take_over(ALONE)
    node.fetch(2, 0)

    async def send() -> None:
        task = asyncio.ensure_future(
            node.roles.alter_partitions(cast(Any, ScriptedChannel()), cast(Any, FakeQuorum()), EPOCH)
        )
        while ScriptedChannel.script:
            await asyncio.sleep(0)
            node.loop.advance(RETRY_MS)
            if len(ScriptedChannel.asked) == 3:  # refused: the follower's next fetch has it proposed again
                node.fetch(2, 0)
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(asyncio.wait_for(send(), 30))
    assert node.partition.isr == (1, 2)
    assert all(request.broker_epoch == EPOCH for request in ScriptedChannel.asked)


class FakeQuorum:
    """A quorum whose active controller is known."""

    address = Address("localhost", 1)


def test_followers_that_lag_are_proposed_to_leave(node: ReplicatedBroker) -> None:
    node.append("t", b"a")
    node.fetch(2, 1)
    node.loop.advance(30_001)
    node.fetch(2, 1)
    asyncio.run(node.roles.propose_changes())
    request = node.roles._proposals.next_request(EPOCH, node.loop.time.monotonic_ms())
    assert request is not None
    assert [one.broker_id for one in request.topics[0].partitions[0].new_isr_with_epochs] == [1, 2]


def test_many_isrs_are_checked_in_turns(node: ReplicatedBroker) -> None:
    """Leaders whose leadership ends in the turns between are left out."""
    count, checked = 2 * CHECKED_PER_TURN + 1, []

    def leader(number: int) -> Leading:
        return cast("Leading", SimpleNamespace(propose=lambda: checked.append(number)))

    node.roles._led = {PartitionKey(b"t" * 16, number): leader(number) for number in range(count)}

    async def check() -> list[int]:
        task, seen = asyncio.ensure_future(node.roles.propose_changes()), []
        while not task.done():
            await asyncio.sleep(0)
            seen.append(len(checked))
            node.roles._led.pop(PartitionKey(b"t" * 16, count - 1), None)
        return seen

    assert asyncio.run(check())[:2] == [CHECKED_PER_TURN, 2 * CHECKED_PER_TURN]
    assert checked == list(range(count - 1))
    node.roles._led = {}


def test_a_leader_that_was_elected_uncleanly_reports_that_it_has_recovered(node: ReplicatedBroker) -> None:
    node.partition.take_over(PartitionState((1, 2, 3), (1,), 1, 6, 9, is_recovering=True))
    request = node.roles._proposals.next_request(EPOCH, 0.0)
    assert request is not None
    (asked,) = request.topics[0].partitions
    assert ([one.broker_id for one in asked.new_isr_with_epochs], asked.leader_recovery_state) == ([1], RECOVERED)


def test_a_log_that_cannot_be_opened_is_not_led(node: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise errors.KafkaStorageError

    monkeypatch.setattr(roles, "begin_leading", fail)
    node.partition.take_over(LED._replace(leader_epoch=6, partition_epoch=9))
    assert not node.partition.is_leader
    assert node.partition.leading is None


def test_a_log_that_could_not_be_opened_is_led_once_it_can_be(
    node: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has elected this broker and knows of no fault: the partition would take no records."""
    begin, errors_left = begin_leading, [errors.KafkaStorageError("no room"), errors.KafkaStorageError("no room")]

    def open_and_begin(*arguments: Any) -> Any:
        if errors_left:
            raise errors_left.pop()
        return begin(*arguments)

    monkeypatch.setattr(roles, "begin_leading", open_and_begin)
    node.partition.take_over(LED._replace(leader_epoch=6, partition_epoch=9))
    found = []
    for _ in range(3):
        node.roles.lead_again()
        found.append(node.partition.leading)
    assert found[0] is None
    assert found[1] is not None
    assert found[1] is found[2], "once"
    assert node.partition.is_leader


class UncreatedLog:
    """The log of a node's partition, which could not be created at first because the disk is full."""

    def __init__(self, node: ReplicatedBroker) -> None:
        self.is_full, self.is_open = True, False
        self._log = node.partition.local_log
        node.partition._log = None
        node.partition._open_log = self.open
        node.partition._is_unopened = lambda: not self.is_open
        node.thread_works = []

    def open(self) -> UnifiedLog:
        if self.is_full:
            raise errors.KafkaStorageError("no room")
        self.is_open = True
        return self._log


def run_threads(node: ReplicatedBroker) -> None:
    """Do the work of the node's threads."""
    while node.thread_works:
        node.thread_works.pop(0)()


def test_the_log_of_a_new_leader_is_opened_in_a_thread(
    node: ReplicatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop must not wait for the disk."""
    log, partition = UncreatedLog(node), node.partition
    partition.take_over(LED._replace(leader_epoch=6, partition_epoch=9))
    for _ in range(2):
        run_threads(node)
        node.roles.lead_again()
    assert caplog.text.count("t-0 cannot be led: no room") == 1
    assert (partition.leading, partition.is_leader) == (None, False)
    log.is_full = False
    assert not log.is_open
    run_threads(node)
    assert partition.leading is not None
    assert partition.is_leader


def test_another_leader_ends_the_wait_for_a_thread(node: ReplicatedBroker) -> None:
    log, partition = UncreatedLog(node), node.partition
    log.is_full = False
    partition.take_over(LED._replace(leader_epoch=6, partition_epoch=9))
    partition.take_over(LED._replace(leader=2, leader_epoch=7, partition_epoch=10))
    run_threads(node)
    assert (partition.leading, partition.is_leader) == (None, False)


def test_a_defect_in_a_partition_does_not_end_the_attempts_to_lead(
    node: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise no ISR would shrink any more: the same task checks them."""
    failures: list[Exception] = [MemoryError(), MemoryError(), errors.KafkaStorageError("no room")]

    def open_and_begin(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return begin_leading(*arguments)

    monkeypatch.setattr(roles, "begin_leading", open_and_begin)
    node.partition.take_over(LED._replace(leader_epoch=6, partition_epoch=9))
    for _ in range(3):
        node.roles.lead_again()
    assert caplog.text.count("t-0 cannot be led: MemoryError()") == 1
    assert node.partition.is_leader


@pytest.mark.parametrize("error", [errors.CorruptMessageError(), MemoryError()])
def test_no_partition_is_led_without_its_followers(
    node: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Otherwise its records would count as committed at once."""

    def fail(*_: object) -> Any:
        raise error

    state = LED._replace(leader_epoch=6, partition_epoch=9)
    with monkeypatch.context() as patch:
        patch.setattr(roles, "begin_leading", fail)
        for _ in range(3):
            with contextlib.suppress(MemoryError):
                node.partition.take_over(state)
            assert not node.partition.is_leader
    assert caplog.text.count("cannot be led") == isinstance(error, errors.KafkaError), "a reason is logged once"
    node.partition.take_over(state)
    assert node.partition.leading is not None
    assert node.partition.is_leader


def test_another_leader_ends_the_wait_for_a_log(node: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise errors.KafkaStorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(roles, "begin_leading", fail)
        node.partition.take_over(LED._replace(leader_epoch=6, partition_epoch=9))
        node.partition.take_over(LED._replace(leader=2, leader_epoch=7, partition_epoch=10))
    node.roles.lead_again()
    assert not node.partition.is_leader


def test_metrics_are_kafkas_and_outlive_leadership(node: ReplicatedBroker) -> None:
    metrics = Metrics()
    node.roles.measure(metrics)

    def values() -> dict[str, float]:
        return {
            sample.name.removeprefix(roles.PREFIX): sample.value
            for sample in metrics.collect()
            if sample.name.startswith(roles.PREFIX)
        }

    assert values() == {
        "underreplicatedpartitions": 0,
        "underminisrpartitioncount": 0,
        "atminisrpartitioncount": 0,
        "isrshrinks_total": 0,
        "isrexpands_total": 0,
    }
    node.partition.take_over(ALONE)
    assert values()["underreplicatedpartitions"] == values()["atminisrpartitioncount"] == 1
    node.partition.take_over(PartitionState((1, 2, 3), (2,), 2, 6, 9))
    assert values()["underreplicatedpartitions"] == 0
    assert values()["isrshrinks_total"] == 1


def test_a_topic_of_an_image_is_led_when_it_is_shown(node: ReplicatedBroker) -> None:
    image = node.topic._replace(name="u", topic_id=b"u" * 16, partitions=(LED, LED._replace(leader=2)))
    node.broker.metadata.put(image)
    node.replica_manager.take_roles(image, range(image.partition_count))
    led, followed = (node.replica_manager.partition("u", index) for index in range(2))
    assert led.leading is not None
    assert led.end_offset_for_epoch(5) == (5, 0)
    assert followed.leading is None
    assert not followed.is_leader


def test_a_removed_replica_has_no_role(node: ReplicatedBroker) -> None:
    partition = node.partition
    node.replica_manager.remove_replicas(node.topic, [0])
    assert partition.leading is None
    assert not node.roles._led


def test_elections_write_no_file_on_the_loop_and_lose_no_epoch(node: ReplicatedBroker) -> None:
    """Of thousands of partitions each election takes a file: a thread writes them, those that come meanwhile next."""
    path = Path(node.partition.local_log.directory) / "leader-epoch-checkpoint"
    node.thread_works = []
    for epoch in (6, 7):
        node.partition.take_over(LED._replace(leader_epoch=epoch, partition_epoch=epoch + 2))
        assert f"{epoch} 0" not in path.read_text()
        assert node.partition.local_log.leader_epochs.latest_epoch == epoch, "it is answered by at once"
    while node.thread_works:
        node.thread_works.pop(0)()
    assert "7 0" in path.read_text()


def test_epoch_files_are_written_although_one_cannot_be_written(
    node: ReplicatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        topic_partition = "u-0"

        class leader_epochs:  # noqa: N801 - the attribute of a log
            @staticmethod
            def save() -> None:
                raise errors.KafkaStorageError("the disk is gone")

    log = node.partition.local_log
    log.leader_epochs.assign(9, 0, write=False)
    roles.save_epochs([cast(Any, Broken), log])
    assert "cannot write the leader epochs of u-0: the disk is gone" in caplog.text
    assert "9 0" in (Path(log.directory) / "leader-epoch-checkpoint").read_text()
