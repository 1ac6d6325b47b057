"""Reading of records from brokers that move leaders, abort transactions, throttle and drop connections."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import ClassVar, cast

import pytest

from tests.support.model_brokers import BROKERS, PLACES, Log, ModelCluster
from tidelog.client.admin.offsets import READ_COMMITTED
from tidelog.client.connection import ClientError
from tidelog.client.records import reading
from tidelog.client.records.reading import MemberReading, Range, read_partitions
from tidelog.find import FoundRecord
from tidelog.protocol.errors import (
    FencedLeaderEpochError,
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    KafkaError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    ReplicaNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownMemberIdError,
)

WHOLE = Range("start", None, None, follow=False, isolation_level=0)
COMMITTED = WHOLE._replace(isolation_level=READ_COMMITTED)
LEADER_ERRORS = [
    NotLeaderOrFollowerError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    ReplicaNotAvailableError,
    LeaderNotAvailableError,
]


class Clock:
    """Time that goes on by sleeping and with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ModelMember:
    """A member that gets all partitions at once. Later looks at its coordinator have these failures."""

    failures: ClassVar[list[Exception]] = []

    def __init__(self, cluster: ModelCluster, group: str, topics: tuple[str, ...], before_rejoin: object) -> None:
        self.assignment = list(cluster.logs)
        self._polls = 0

    def poll(self) -> bool:
        self._polls += 1
        if self.failures and self._polls > 1:
            raise self.failures.pop()
        return self._polls == 1

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        """Keep nothing."""

    def leave(self) -> None:
        """Leave nothing."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reading, "time", clock)
    monkeypatch.setattr(reading, "GroupMember", ModelMember)
    monkeypatch.setattr(reading, "committed_offsets", lambda cluster, group, places: {})
    return clock


def by_partitions(cluster: ModelCluster, wanted: Range) -> Iterator[FoundRecord | None]:
    return read_partitions(cluster, list(cluster.logs), wanted)


def by_group(cluster: ModelCluster, wanted: Range) -> Iterator[FoundRecord | None]:
    with MemberReading(cluster, "g", ("orders",), wanted, print) as member:
        yield from member.records()


WAYS = pytest.mark.parametrize("read", [by_partitions, by_group])
Read = Callable[[ModelCluster, Range], Iterator[FoundRecord | None]]


def values(found: Iterator[FoundRecord | None], partition: int = 0) -> list[bytes]:
    return [cast(bytes, one.value) for one in found if one is not None and one.partition == partition]


def test_a_start_at_the_epoch_counts_more_than_a_committed_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.append(b"old")
    log.append(b"new")
    monkeypatch.setattr(reading, "committed_offsets", lambda cluster, group, places: {PLACES[0]: 1})
    monkeypatch.setattr(reading, "offsets_from", lambda cluster, partitions, time_ms, **_: dict.fromkeys(partitions, 0))
    since_the_epoch = Range(None, 0, None, follow=False, isolation_level=0)
    assert values(by_group(ModelCluster(log), since_the_epoch)) == [b"old", b"new"]
    assert values(by_group(ModelCluster(log), since_the_epoch._replace(begin_ms=None))) == [b"new"]


@WAYS
def test_a_followed_log_ends_at_its_first_record_of_a_later_time(read: Read) -> None:
    log = Log()
    log.append_times(1)
    cluster = ModelCluster(log)

    def grow() -> None:
        if cluster.fetches == 3:
            log.append_times(5, 9, 2)

    cluster.before = grow
    assert values(read(cluster, WHOLE._replace(end_ms=5, follow=True))) == [b"1", b"5"]


@WAYS
@pytest.mark.parametrize("follow", [True, False])
def test_a_log_with_a_record_of_a_later_time_ends_there(read: Read, *, follow: bool) -> None:
    log = Log()
    log.append_times(1, 5)
    log.append_times(9)
    assert values(read(ModelCluster(log), WHOLE._replace(end_ms=5, follow=follow))) == [b"1", b"5"]


@WAYS
def test_a_later_record_of_an_open_transaction_ends_the_reading_when_it_is_stable(read: Read) -> None:
    """Its offset is above the last stable one: reading took the log for one that had been shortened."""
    log = Log()
    log.append_times(1)
    log.append_times(5, 9)
    log.open_from = 1
    cluster = ModelCluster(log)

    def commit() -> None:
        if cluster.fetches == 400:
            log.open_from = None

    cluster.before = commit
    assert values(read(cluster, COMMITTED._replace(end_ms=5, follow=True))) == [b"1", b"5"]


@WAYS
def test_older_records_that_come_later_in_the_log_are_left_out(read: Read) -> None:
    log = Log()
    log.append_times(1, 6, 2)
    log.append_times(3, 8)
    assert values(read(ModelCluster(log), WHOLE._replace(offset=None, begin_ms=5))) == [b"6", b"8"]


def test_a_member_without_partitions_goes_on_until_it_gets_some() -> None:
    found = by_group(ModelCluster(), WHOLE._replace(end_ms=5, follow=True))
    assert [next(found) for _ in range(3)] == [None] * 3


@WAYS
def test_rounds_of_aborted_batches_do_not_end_the_read(read: Read) -> None:
    log = Log()
    log.append(b"first")
    log.add_aborted(7, 5)
    log.append(b"last")
    assert values(read(ModelCluster(log), COMMITTED)) == [b"first", b"last"]


@WAYS
def test_rounds_of_markers_do_not_end_the_read(read: Read) -> None:
    log = Log()
    for producer_id in range(5):
        log.abort(producer_id, log.end)
    log.append(b"last")
    assert values(read(ModelCluster(log), WHOLE)) == [b"last"]


@WAYS
@pytest.mark.parametrize("error", LEADER_ERRORS)
def test_a_leader_that_moves_does_not_end_the_read(read: Read, error: type[KafkaError]) -> None:
    log = Log()
    for number in range(4):
        log.append(b"%d" % number)
    cluster = ModelCluster(log)

    def move() -> None:
        cluster.errors = {PLACES[0]: error} if cluster.fetches in (2, 3) else {}
        if cluster.fetches == 3:
            cluster.leading[PLACES[0]] = BROKERS[1]

    cluster.before = move
    assert values(read(cluster, WHOLE)) == [b"0", b"1", b"2", b"3"]
    assert cluster.look_ups >= 2


@WAYS
def test_a_broker_that_dies_does_not_end_the_read(read: Read) -> None:
    log = Log()
    for number in range(3):
        log.append(b"%d" % number)
    cluster = ModelCluster(log)

    def kill() -> None:
        if cluster.fetches == 2:
            cluster.down.add(BROKERS[0])
        if cluster.fetches == 5:
            cluster.leading[PLACES[0]] = BROKERS[1]

    cluster.before = kill
    assert values(read(cluster, WHOLE)) == [b"0", b"1", b"2"]


@WAYS
def test_a_throttled_round_does_not_end_the_read(read: Read) -> None:
    log = Log()
    log.append(b"0")
    log.append(b"1")
    cluster = ModelCluster(log)

    def throttle() -> None:
        cluster.is_throttled = 2 <= cluster.fetches <= 8

    cluster.before = throttle
    assert values(read(cluster, WHOLE)) == [b"0", b"1"]


@WAYS
def test_a_new_leader_that_does_not_know_the_high_watermark_yet_does_not_end_the_read(read: Read) -> None:
    log = Log()
    log.append(b"0")
    log.append(b"1")
    cluster = ModelCluster(log)

    def lag() -> None:
        cluster.high_watermarks = {PLACES[0]: 1} if cluster.fetches < 12 else {}

    cluster.before = lag
    assert values(read(cluster, WHOLE)) == [b"0", b"1"]


@pytest.mark.parametrize("failure", [NotCoordinatorError("moved"), ClientError("connection refused")])
def test_a_coordinator_that_moves_does_not_end_the_read(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelMember, "failures", [failure] * 5)
    log = Log()
    log.append(b"0")
    log.append(b"1")
    assert values(by_group(ModelCluster(log), WHOLE)) == [b"0", b"1"]
    assert ModelMember.failures == []


def test_a_member_that_is_refused_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelMember, "failures", [GroupAuthorizationFailedError("no")])
    log = Log()
    log.append(b"0")
    log.append(b"1")
    with pytest.raises(GroupAuthorizationFailedError):
        list(by_group(ModelCluster(log), WHOLE))


@WAYS
def test_offsets_without_records_before_the_end_end_the_read(read: Read) -> None:
    log, other = Log(), Log()
    log.append(b"0")
    log.skip(5)
    for number in range(6):
        other.append(b"%d" % number)
    cluster = ModelCluster(log, other)
    found = [one for one in read(cluster, WHOLE) if one is not None]
    assert values(iter(found), 0) == [b"0"]
    assert values(iter(found), 1) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@WAYS
@pytest.mark.parametrize("error", [*LEADER_ERRORS, TopicAuthorizationFailedError])
def test_an_error_that_stays_is_raised_after_the_records_of_other_partitions(
    read: Read, error: type[KafkaError], clock: Clock
) -> None:
    log, other = Log(), Log()
    log.append(b"0")
    other.append(b"1")
    cluster = ModelCluster(log, other)
    cluster.errors = {PLACES[0]: error}
    found: list[FoundRecord | None] = []
    with pytest.raises(error):
        found.extend(read(cluster, WHOLE))
    assert values(iter(found), 1) == [b"1"]
    assert clock.now < 100
    assert cluster.fetches == 1 or error.retriable


@WAYS
def test_a_log_that_lost_its_end_is_reported(read: Read, clock: Clock) -> None:
    log = Log()
    log.append(b"0")
    log.append(b"1")
    cluster = ModelCluster(log)
    cluster.high_watermarks = {PLACES[0]: 1}
    with pytest.raises(ClientError, match=r"orders-0.* 1 .* 2"):
        list(read(cluster, WHOLE))
    assert clock.now < 100


@WAYS
@pytest.mark.parametrize("seed", range(12))
def test_each_record_comes_once_whatever_happens_between(read: Read, seed: int) -> None:
    source = random.Random(seed)
    logs = [random_log(source) for _ in PLACES]
    cluster = ModelCluster(*logs)

    def disturb() -> None:
        for place in PLACES:
            cluster.errors.pop(place, None)
            if source.random() < 0.1:
                cluster.leading[place] = source.choice(BROKERS)
            if source.random() < 0.1:
                cluster.errors[place] = source.choice(LEADER_ERRORS)
        cluster.is_throttled = source.random() < 0.1
        cluster.down = {source.choice(BROKERS)} if source.random() < 0.1 else set()

    cluster.before = disturb
    wanted = source.choice([WHOLE, COMMITTED])
    found = [one for one in read(cluster, wanted) if one is not None]
    for number, log in enumerate(logs):
        assert values(iter(found), number) == log.values[wanted.isolation_level]


def random_log(source: random.Random) -> Log:
    """Build a log: batches, transactions and offsets without records in any order."""
    log = Log()
    for number in range(source.randrange(12)):
        match source.randrange(4):
            case 0:
                log.add_aborted(number, source.randrange(1, 4))
            case 1:
                log.skip(source.randrange(3))
            case _:
                log.append(*(b"%d %d" % (number, one) for one in range(source.randrange(1, 3))))
    return log


def test_a_member_that_was_removed_meanwhile_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pager may stop the output for longer than the session timeout. After the next heartbeat it joins again."""
    failures: list[Exception] = [UnknownMemberIdError("removed"), IllegalGenerationError("late")]
    told: list[KafkaError] = []

    def commit(_self: ModelMember, _offsets: object) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(ModelMember, "commit", commit)
    monkeypatch.setattr(reading, "COMMIT_S", 0.0)
    log = Log()
    for number in range(4):
        log.append(b"%d" % number)
    with MemberReading(ModelCluster(log), "g", ("orders",), WHOLE, told.append) as member:
        assert values(member.records()) == [b"0", b"1", b"2", b"3"]
    assert [type(error) for error in told] == [IllegalGenerationError, UnknownMemberIdError]


def test_a_committed_offset_that_retention_has_passed_is_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    for number in range(4):
        log.append(b"%d" % number)
    monkeypatch.setattr(reading, "committed_offsets", lambda cluster, group, places: {PLACES[0]: 1})
    monkeypatch.setattr(reading, "log_starts", lambda cluster, partitions: dict.fromkeys(partitions, 2))
    assert values(by_group(ModelCluster(log), WHOLE._replace(offset=None))) == [b"2", b"3"]


@WAYS
def test_records_that_retention_deletes_meanwhile_are_skipped(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    for number in range(4):
        log.append(b"%d" % number)
    cluster = ModelCluster(log)

    def delete() -> None:
        cluster.errors = {PLACES[0]: OffsetOutOfRangeError} if cluster.fetches == 2 else {}

    def starts(_cluster: ModelCluster, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(places, 3 if cluster.fetches >= 2 else 0)

    cluster.before = delete
    monkeypatch.setattr(reading, "log_starts", starts)
    assert values(read(cluster, WHOLE)) == [b"0", b"3"]


@WAYS
def test_a_position_after_the_end_of_a_log_is_an_error(read: Read) -> None:
    log = Log()
    log.append(b"0")
    cluster = ModelCluster(log)
    cluster.errors = {PLACES[0]: OffsetOutOfRangeError}
    with pytest.raises(OffsetOutOfRangeError):
        list(read(cluster, WHOLE))
