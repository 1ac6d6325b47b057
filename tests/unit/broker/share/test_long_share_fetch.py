"""Share fetches and acknowledgements of many partitions, which are handled in steps, and changes between the steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from tests.support.topics import delete_topic
from tests.unit.broker.share.share_world import ShareMember, ShareWorld, partitions, read_fetched
from tests.unit.broker.stepping import response_of
from tidelog.broker.handlers import share_acknowledge, share_fetch
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.broker.share.reading import ShareRead
from tidelog.broker.share.sessions import SessionKey
from tidelog.broker.share.share_partition import SharePartition
from tidelog.protocol.errors import UnknownTopicIdError
from tidelog.protocol.messages import share_acknowledge as acknowledging
from tidelog.protocol.messages.share_acknowledge import AcknowledgePartition, AcknowledgeTopic, ShareAcknowledgeRequest
from tidelog.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from tidelog.protocol.transferable import RetainedFile, TransferableRecords

MANY = 12
Record = tuple[int, int]
"""Partition and offset."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShareWorld]:
    world = ShareWorld(tmp_path)
    world.configure("g")
    world.topic("t", partitions=MANY)
    yield world
    world.close()


def append_to_all(world: ShareWorld, *values: bytes) -> None:
    for index in range(MANY):
        world.append("t", *values, partition=index)


def begin(member: ShareMember, acquired: list[Record] | None = None, **fields: Any) -> Steps[Any]:
    """Begin a fetch of all partitions, which acknowledges these records."""
    asked = [FetchPartition(partition_index=index, acknowledgement_batches=[]) for index in range(MANY)]
    for index, offset in acquired or ():
        batch = AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[1])
        asked[index].acknowledgement_batches.append(batch)
    values: dict[str, Any] = {
        "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1_000_000, "max_records": 500, "batch_size": 500, **fields,
    }  # fmt: skip
    request = ShareFetchRequest(
        group_id=member.group,
        member_id=member.member_id,
        share_session_epoch=member.epoch,
        topics=[FetchTopic(topic_id=member.topic_id, partitions=asked)],
        **values,
    )
    member.epoch += 1
    member.context.api_version = 2
    steps = share_fetch.handle(member.world.broker, member.context, request)
    assert isinstance(steps, GeneratorType)
    return steps


def advance(steps: Steps[Any]) -> ShareFetchResponse | Deferred[Any] | None:
    """Do one step. Returns the response at the end, and a Deferred for which the steps have to wait."""
    try:
        waiting = next(steps)
    except StopIteration as end:
        return read_fetched(end.value)
    return waiting if waiting is not None and not waiting.done else None


def finish(steps: Steps[Any]) -> ShareFetchResponse:
    """Do the steps to the end; none has to wait."""
    while True:
        found = advance(steps)
        if found is not None:
            assert isinstance(found, ShareFetchResponse)
            return found


def records_of(response: ShareFetchResponse) -> list[Record]:
    return [
        (data.partition_index, offset)
        for data in partitions(response)
        for run in data.acquired_records
        for offset in range(run.first_offset, run.last_offset + 1)
    ]


def test_one_step_reads_acquires_or_acknowledges_one_partition(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_to_all(world, b"a")
    member = world.member()
    groups, done = world.coordinators.share_groups, 0

    def count(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal done
            done += 1
            return method(*arguments)

        return counted

    for owner, name in ((groups, "serve"), (groups, "acknowledge"), (SharePartition, "acquire")):
        monkeypatch.setattr(owner, name, count(getattr(owner, name)))
    acquired: list[Record] = []
    for _ in range(2):
        steps, done, before = begin(member, acquired), 0, 0
        while (response := advance(steps)) is None:
            assert done <= before + 1
            before = done
        assert isinstance(response, ShareFetchResponse)
        acquired = acquired or records_of(response)
        assert done == 2 * MANY
    assert len(acquired) == MANY


def test_acknowledgements_are_applied_in_steps(world: ShareWorld) -> None:
    append_to_all(world, b"a")
    member = world.member()
    acquired = records_of(finish(begin(member)))
    batches = [acknowledging.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])]
    asked = [AcknowledgePartition(partition_index=index, acknowledgement_batches=batches) for index, _ in acquired]
    request = ShareAcknowledgeRequest(
        group_id=member.group,
        member_id=member.member_id,
        share_session_epoch=member.epoch,
        topics=[AcknowledgeTopic(topic_id=member.topic_id, partitions=asked)],
    )
    request = ShareAcknowledgeRequest.decode(memoryview(request.encode(2)), 2)
    steps = share_acknowledge.handle(world.broker, member.context, request)
    served = list(world.coordinators.share_groups._served.values())
    for number in range(1, MANY + 1):
        next(steps)
        assert sum(one.partition.start_offset for one in served) == number
    response = response_of(steps)
    assert [data.error_code for data in response.responses[0].partitions] == [0] * MANY


@pytest.mark.parametrize("seed", range(10))
def test_fetches_that_take_turns_acquire_each_record_once(world: ShareWorld, seed: int) -> None:
    append_to_all(world, b"a", b"b", b"c")
    chance = random.Random(seed)
    members = [world.member(member_id=name) for name in "mno"]
    acquired: list[Record] = []
    fetches = {member.member_id: begin(member, max_records=chance.choice([5, 500])) for member in members}
    while fetches:
        name = chance.choice(sorted(fetches))
        found = advance(fetches[name])
        if isinstance(found, ShareFetchResponse):
            acquired += records_of(found)
            del fetches[name]
    for member in members:
        acquired += records_of(finish(begin(member)))
    assert sorted(acquired) == [(index, offset) for index in range(MANY) for offset in range(3)]


def test_a_record_that_comes_between_the_read_and_the_wait_ends_the_wait(world: ShareWorld) -> None:
    for moment in range(8 * MANY):
        member = world.member(member_id=f"m{moment}")
        steps = begin(member, max_wait_ms=1_000)
        found = None
        for _ in range(moment):
            found = found or advance(steps)
        world.append("t", b"a", partition=0)
        for _ in range(3):
            world.loop.run_soon()
        while found is None or (isinstance(found, Deferred) and found.done):
            found = advance(steps)
        assert isinstance(found, ShareFetchResponse), f"it waits, at step {moment}"
        assert records_of(found) == [(0, moment)]


def test_a_share_partition_that_is_dropped_before_it_is_acquired_is_left_out(world: ShareWorld) -> None:
    append_to_all(world, b"a")
    member = world.member()
    finish(begin(member, max_bytes=0))
    steps = begin(member)
    for _ in range(5 * MANY):
        assert advance(steps) is None
        world.coordinators.share_groups.forget_group("g")
    response = finish(steps)
    later = records_of(finish(begin(world.member(member_id="n"))))
    assert sorted(records_of(response) + later) == [(index, 0) for index in range(MANY)]


def test_a_topic_that_is_deleted_between_two_steps_is_answered(world: ShareWorld) -> None:
    for moment in range(0, 8 * MANY, 3):
        name = f"u{moment}"
        world.topic(name, partitions=MANY)
        member = world.member(topic=name, member_id=name)
        steps = begin(member, max_wait_ms=1_000)
        found = None
        for _ in range(moment):
            found = found or advance(steps)
        topic_id = delete_topic(world, name).topic_id
        world.coordinators.topic_deleted(name, topic_id)
        for _ in range(3):
            world.loop.run_soon()
        while found is None or (isinstance(found, Deferred) and found.done):
            found = advance(steps)
        assert isinstance(found, ShareFetchResponse), f"it waits, at step {moment}"
        errors = {data.error_code for data in partitions(found)}
        assert errors == {UnknownTopicIdError.code}, f"at step {moment}"


class CountedFile:
    """The file of a slice, and how many slices of all these files are not released."""

    retained = 0

    def __init__(self, file: RetainedFile) -> None:
        self._file = file
        CountedFile.retained += 1

    def fileno(self) -> int:
        return self._file.fileno()

    def retain(self) -> None:
        self._file.retain()
        CountedFile.retained += 1

    def release(self) -> None:
        self._file.release()
        CountedFile.retained -= 1


def test_a_client_that_goes_between_two_steps_leaves_no_file_retained(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_to_all(world, b"a")
    read_one = ShareRead._read_one
    most = 0

    def read_counted(self: ShareRead, *arguments: Any) -> Any:
        nonlocal most
        read = read_one(self, *arguments)
        records = read.found.records
        if not isinstance(records, TransferableRecords):
            return read
        counted = TransferableRecords(CountedFile(records.file), records.position, records.size)
        most = max(most, CountedFile.retained)
        return read._replace(found=read.found._replace(records=counted))

    monkeypatch.setattr(ShareRead, "_read_one", read_counted)
    monkeypatch.setattr(CountedFile, "retained", 0)
    for moment in range(8 * MANY):
        member = world.member(member_id=f"m{moment}")
        steps = begin(member)
        for _ in range(moment):
            if advance(steps) is not None:
                break
        steps.close()
        assert CountedFile.retained == 0, f"at step {moment}"
        world.coordinators.share_groups.release_session(SessionKey("g", member.member_id))
    assert most == MANY


def release_slowly(world: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> list[SharePartition]:
    """Let the release of one share partition take longer than a slice; return those that are released, as they are."""
    released: list[SharePartition] = []
    release = SharePartition.release

    def release_slow(self: SharePartition, *arguments: Any) -> Any:
        released.append(self)
        world.time.advance(3)
        return release(self, *arguments)

    monkeypatch.setattr(SharePartition, "release", release_slow)
    return released


def close_connection(member: ShareMember) -> None:
    assert member.context.on_close is not None
    member.context.on_close()


def test_a_session_that_ends_releases_its_partitions_in_turns_of_their_own(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_to_all(world, b"a")
    member = world.member()
    assert len(records_of(finish(begin(member)))) == MANY
    released = release_slowly(world, monkeypatch)
    close_connection(member)
    for count in range(1, MANY + 1):
        assert len(released) == count
        world.loop.run_soon()
    assert len(records_of(finish(begin(world.member(member_id="n"))))) == MANY


def test_a_member_that_comes_back_keeps_what_it_acquires_after_the_release(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_to_all(world, b"a")
    member = world.member()
    finish(begin(member))
    released = release_slowly(world, monkeypatch)
    close_connection(member)
    member.epoch = 0
    steps = begin(member)
    waiting = advance(steps)
    assert isinstance(waiting, Deferred), "the new session waits for the release"
    while not waiting.done:
        world.loop.run_soon()
    assert len(records_of(finish(steps))) == MANY
    for _ in range(MANY):
        world.loop.run_soon()
    assert len(released) == MANY
    assert records_of(finish(begin(world.member(member_id="n")))) == []


def test_the_last_member_that_leaves_releases_all_its_records_before_they_are_forgotten(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that is not stored costs delivery counts: records would come more often than the group's limit."""
    append_to_all(world, b"a")
    member = world.member()
    finish(begin(member))
    released = release_slowly(world, monkeypatch)
    member.leave()
    while world.loop.soon:
        world.loop.run_soon()
    assert len(released) == MANY
    assert not world.coordinators.share_groups._served
    counts = {
        run.delivery_count
        for data in partitions(finish(begin(world.member(member_id="n"))))
        for run in data.acquired_records
    }
    assert counts == {2}


def test_a_member_that_joins_while_the_last_one_is_released_keeps_what_it_acquires(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records would be delivered again, and its acknowledgements refused."""
    append_to_all(world, b"a")
    member = world.member()
    finish(begin(member))
    released = release_slowly(world, monkeypatch)
    member.leave()
    other = world.member(member_id="n")
    assert len(released) < MANY, "the release is not over"
    acquired = records_of(finish(begin(other)))
    assert acquired
    while world.loop.soon:
        world.loop.run_soon()
    assert len(released) == MANY
    answer = finish(begin(other, acquired))
    assert [data.acknowledge_error_code for data in partitions(answer)] == [0] * MANY
    assert not set(acquired) & set(records_of(answer))
