"""The observer with scripted quorums: leaders, snapshots, divergence, transactions, uncommitted records."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.model_quorum import NOT_LEADER, ModelQuorum, UnreachableError
from tidelog.broker.cluster.observing.metadata_tail import MetadataLostError
from tidelog.broker.cluster.observing.observer import MAX_BACKOFF_MS, Observer, ObserverConfig, ObserverError
from tidelog.broker.metadata.replay import PublishedImage
from tidelog.protocol.errors import CorruptMessageError, UnsupportedVersionError
from tidelog.protocol.messages import fetch, fetch_snapshot
from tidelog.protocol.metadata_records import records
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.schema.fields import Message

SEEDS = int(os.environ.get("TIDELOG_OBSERVER_SEEDS", "60"))


def config(number: int, value: str = "1") -> Message:
    return records.ConfigRecord(resource_type=2, resource_name=f"topic-{number}", name="retention.ms", value=value)


class Driver:
    """An observer and the quorum it asks, on a clock that moves to the next question."""

    def __init__(self, quorum: ModelQuorum | None = None, *, first: int = 1, version: int = 18, **options: int) -> None:
        self.quorum = quorum or ModelQuorum()
        addresses = list(self.quorum.addresses.values())
        bootstrap = tuple(addresses[first - 1 :] + addresses[: first - 1])
        self.observer = Observer(ObserverConfig(bootstrap, max_bytes=options.get("max_bytes", 1 << 20)))
        self.version = version
        self.now_ms = 0.0
        self.asked: list[str] = []

    def step(self, *, is_lost: bool = False) -> PublishedImage | None:
        """Take one question and its answer, on the wire's format."""
        question = self.observer.next_question()
        self.now_ms = max(self.now_ms, question.not_before_ms)
        self.asked.append(f"{type(question.request).__name__} {question.address.port - 9090}")
        try:
            if is_lost:
                raise UnreachableError("the answer was lost")
            if isinstance(question.request, fetch.FetchRequest):
                request = fetch.FetchRequest.decode(question.request.encode(self.version), self.version)
                answer = self.quorum.answer(question.address, request)
                response = fetch.FetchResponse.decode(answer.encode(self.version), self.version)
                return self.observer.take_answer(response, self.now_ms)
            asked = fetch_snapshot.FetchSnapshotRequest.decode(question.request.encode(1), 1)
            piece = self.quorum.answer(question.address, asked)
            return self.observer.take_answer(
                fetch_snapshot.FetchSnapshotResponse.decode(piece.encode(1), 1), self.now_ms
            )
        except UnreachableError as error:
            self.observer.take_failure(str(error), self.now_ms)
            return None

    def catch_up(self, steps: int = 100) -> list[PublishedImage]:
        """Step until the observer says that it has caught up; return what was published."""
        found = []
        for _ in range(steps):
            published = self.step()
            found += [published] if published is not None else []
            if self.observer.is_caught_up:
                return found
        raise AssertionError(f"not caught up: {self.observer.last_failure}; asked {self.asked[-20:]}")

    def assert_committed(self) -> None:
        """Check that the observer's image is one of those that the committed batches give."""
        image = self.observer.image
        assert self.quorum.images().get(image.offset) == image


@pytest.mark.parametrize("version", [17, 18])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_any_controller_leads_to_the_leader(first: int, version: int) -> None:
    driver = Driver(first=first, version=version)
    driver.quorum.elect(2)
    driver.quorum.reign.append(config(1))
    driver.quorum.commit()
    driver.catch_up()
    driver.assert_committed()
    assert driver.observer.quorum.leader_id == 2
    assert len(driver.asked) == 2, "one answer names leader and epoch, the next is the leader's"


def test_only_committed_records_are_replayed() -> None:
    driver = Driver()
    reign = driver.quorum.reign
    for number in range(3):
        reign.append(config(number))
    driver.quorum.commit(1)
    driver.catch_up()
    assert list(driver.observer.image.configs) == [(2, "topic-0")]
    driver.quorum.commit()
    (published,) = driver.catch_up()
    assert set(published.delta.configs.changed) == {(2, "topic-1"), (2, "topic-2")}
    driver.assert_committed()


def test_the_request_says_which_high_watermark_is_known() -> None:
    """From v18 on the leader answers as soon as it has a larger one (KIP-1166)."""
    driver = Driver()
    driver.catch_up()
    request = driver.observer.next_question().request
    assert isinstance(request, fetch.FetchRequest)
    asked = request.topics[0].partitions[0]
    assert (asked.high_watermark, asked.fetch_offset, asked.last_fetched_epoch) == (1, 1, 1)


def test_a_new_leader_without_high_watermark_is_waited_for() -> None:
    driver = Driver()
    driver.quorum.elect(2)
    for _ in range(5):
        driver.step()
    assert not driver.observer.is_caught_up
    assert driver.observer.image.offset == -1
    driver.quorum.commit()
    driver.catch_up()
    assert driver.observer.image.offset == 1


def test_uncommitted_records_of_a_lost_leader_are_cut() -> None:
    driver = Driver()
    for number in range(4):
        driver.quorum.reign.append(config(number))
    driver.quorum.commit(1)
    driver.catch_up()
    driver.quorum.elect(3, kept=1)
    driver.quorum.reign.append(config(9))
    driver.quorum.commit()
    driver.catch_up()
    driver.assert_committed()
    assert set(driver.observer.image.configs) == {(2, "topic-0"), (2, "topic-1"), (2, "topic-9")}


def test_a_stale_leader_is_left_when_the_new_one_is_known() -> None:
    driver = Driver()
    driver.catch_up()
    driver.quorum.elect(2, old_leader_knows=False)
    driver.quorum.commit()
    driver.step()
    driver.assert_committed()
    driver.step(is_lost=True)
    driver.catch_up()
    assert driver.observer.quorum.leader_id == 2
    driver.observer.quorum.confirm(driver.quorum.addresses[1])  # asked again, the old leader knows a lower epoch
    driver.step()
    assert driver.observer.quorum.epoch == 2
    driver.catch_up()


@pytest.mark.parametrize("max_bytes", [100, 1000, 1 << 20])
def test_a_snapshot_comes_in_pieces(max_bytes: int) -> None:
    quorum = ModelQuorum()
    for number in range(50):
        quorum.reign.append(config(number))
    quorum.commit()
    quorum.take_snapshot()
    quorum.reign.append(config(50))
    quorum.commit()
    driver = Driver(quorum, max_bytes=max_bytes)
    published = driver.catch_up(1000)
    driver.assert_committed()
    assert len(published) == 2, "the snapshot, and the log after it"
    assert len(driver.observer.image.configs) == 51


def test_a_snapshot_is_published_as_the_difference() -> None:
    driver = Driver()
    driver.quorum.reign.append(config(1), config(2), config(3))
    driver.quorum.commit()
    driver.catch_up()
    removed = records.ConfigRecord(resource_type=2, resource_name="topic-3", name="retention.ms", value=None)
    driver.quorum.reign.append(config(2, "7"), removed, config(4))
    driver.quorum.commit()
    driver.quorum.take_snapshot()
    published = driver.catch_up()
    changed = published[0].delta.configs.changed
    assert changed == {
        (2, "topic-2"): {"retention.ms": "7"},
        (2, "topic-3"): None,
        (2, "topic-4"): {"retention.ms": "1"},
    }
    driver.assert_committed()


def test_a_snapshot_that_was_replaced_is_begun_again() -> None:
    quorum = ModelQuorum()
    quorum.reign.append(*(config(number) for number in range(20)))
    quorum.commit()
    quorum.take_snapshot()
    driver = Driver(quorum, max_bytes=200)
    for _ in range(4):
        driver.step()
    quorum.reign.append(config(99))
    quorum.commit()
    quorum.take_snapshot()
    driver.catch_up()
    driver.assert_committed()


def test_a_snapshot_is_begun_again_at_a_new_leader() -> None:
    quorum = ModelQuorum()
    quorum.reign.append(*(config(number) for number in range(20)))
    quorum.commit()
    quorum.take_snapshot()
    driver = Driver(quorum, max_bytes=200)
    for _ in range(4):
        driver.step()
    quorum.elect(2)
    quorum.commit()
    driver.catch_up()
    driver.assert_committed()


@pytest.mark.parametrize("end", [records.EndTransactionRecord(), records.AbortTransactionRecord()])
def test_a_transaction_shows_at_its_end(end: Message) -> None:
    driver = Driver()
    driver.quorum.reign.append(config(1))
    driver.quorum.reign.append(records.BeginTransactionRecord(name="topics"), config(2))
    driver.quorum.reign.append(config(3))
    driver.quorum.commit()
    driver.catch_up()
    assert list(driver.observer.image.configs) == [(2, "topic-1")]
    driver.quorum.reign.append(end)
    driver.quorum.commit()
    driver.catch_up()
    driver.assert_committed()
    assert len(driver.observer.image.configs) == (3 if isinstance(end, records.EndTransactionRecord) else 1)


def test_no_controller_answers_and_then_one_does() -> None:
    driver = Driver()
    driver.quorum.down = {1, 2, 3}
    times = []
    for _ in range(12):
        driver.step()
        times.append(driver.now_ms)
    assert times[-1] - times[-2] == MAX_BACKOFF_MS
    assert {asked.split()[1] for asked in driver.asked} == {"1", "2", "3"}, "each has its turn"
    assert "is down" in driver.observer.last_failure
    driver.quorum.down = {1}
    driver.quorum.elect(3)
    driver.quorum.commit()
    driver.catch_up()
    assert driver.observer.last_failure == ""


def test_a_follower_that_knows_no_leader_is_asked_later() -> None:
    driver = Driver()
    no_leader = fetch.LeaderIdAndEpoch(leader_id=-1, leader_epoch=0)
    nothing = fetch.PartitionData(error_code=NOT_LEADER, current_leader=no_leader)
    driver.observer.take_answer(fetch_answer(nothing), 1000)
    question = driver.observer.next_question()
    assert question.not_before_ms > 1000
    assert question.address == driver.quorum.addresses[2]
    driver.catch_up()


def fetch_answer(partition: fetch.PartitionData) -> fetch.FetchResponse:
    return fetch.FetchResponse(responses=[fetch.FetchableTopicResponse(partitions=[partition])])


def leading(driver: Driver) -> fetch.LeaderIdAndEpoch:
    return fetch.LeaderIdAndEpoch(leader_id=1, leader_epoch=driver.observer.quorum.epoch)


def test_a_damaged_batch_is_asked_for_again() -> None:
    driver = Driver()
    driver.catch_up()
    driver.quorum.reign.append(config(1))
    good = driver.quorum.reign.batches[-1].view()
    damaged = bytearray(good)
    damaged[-1] ^= 1
    answer = fetch.PartitionData(current_leader=leading(driver), high_watermark=2, records=bytes(damaged))
    assert driver.observer.take_answer(fetch_answer(answer), 0) is None
    assert "corrupt" in driver.observer.last_failure
    driver.quorum.commit()
    driver.catch_up()
    driver.assert_committed()


def test_a_batch_that_does_not_follow_is_not_taken() -> None:
    driver = Driver()
    driver.catch_up()
    driver.quorum.reign.append(config(1))
    driver.quorum.reign.append(config(2))
    late = bytes(driver.quorum.reign.batches[-1].view())
    answer = fetch.PartitionData(current_leader=leading(driver), high_watermark=3, records=late)
    assert driver.observer.take_answer(fetch_answer(answer), 0) is None
    assert driver.observer.image.offset == 0


def test_a_divergence_that_cuts_nothing_waits() -> None:
    driver = Driver()
    driver.catch_up()
    diverging = fetch.EpochEndOffset(epoch=1, end_offset=9)
    answer = fetch.PartitionData(current_leader=leading(driver), diverging_epoch=diverging)
    driver.observer.take_answer(fetch_answer(answer), 1000)
    assert driver.observer.next_question().not_before_ms > 1000


def test_a_quorum_that_lost_committed_records_is_refused() -> None:
    driver = Driver()
    driver.quorum.reign.append(config(1))
    driver.quorum.commit()
    driver.catch_up()
    restored = ModelQuorum()
    restored.elect(1)
    restored.commit()
    driver.quorum = restored
    before = driver.observer.image
    with pytest.raises(MetadataLostError, match="records up to offset 1 of epoch 1 were committed"):
        driver.catch_up()
    assert driver.observer.image is before


def test_a_snapshot_below_the_committed_records_is_refused() -> None:
    driver = Driver()
    driver.quorum.reign.append(config(1))
    driver.quorum.commit()
    driver.catch_up()
    answer = fetch.PartitionData(current_leader=leading(driver), snapshot_id=fetch.SnapshotId(end_offset=2, epoch=1))
    with pytest.raises(MetadataLostError, match="does not continue"):
        driver.observer.take_answer(fetch_answer(answer), 0)


@pytest.mark.parametrize(("code", "name"), [(31, "ClusterAuthorizationFailed"), (104, "InconsistentClusterId")])
def test_a_refusal_is_final(code: int, name: str) -> None:
    driver = Driver()
    with pytest.raises(ObserverError, match=f"controller-1:9091 answers {name}"):
        driver.observer.take_answer(fetch.FetchResponse(error_code=code), 0)


@pytest.mark.parametrize(("value", "error"), [
    (b"\x01\x63\x00", UnsupportedVersionError), (b"\x01\x05\x00\x00", CorruptMessageError),
])  # fmt: skip
def test_a_record_that_cannot_be_replayed_is_an_error(value: bytes, error: type[Exception]) -> None:
    driver = Driver()
    driver.catch_up()
    batch = bytes(build_batch([Record(1, 0, None, value)], BatchOptions(partition_leader_epoch=1)))
    answer = fetch.PartitionData(current_leader=leading(driver), high_watermark=2, records=batch)
    with pytest.raises(error):
        driver.observer.take_answer(fetch_answer(answer), 0)


def disturb(quorum: ModelQuorum, choices: random.Random, in_transaction: list[bool]) -> None:
    """Do one random thing that can happen to a quorum."""
    reign = quorum.reign
    act = choices.randrange(9)
    if act <= 2:
        reign.append(*(config(choices.randrange(6), str(choices.randrange(100))) for _ in range(choices.randint(1, 3))))
    elif act == 3 and reign.high_watermark >= 0:
        if in_transaction[0]:
            reign.append(choices.choice([records.EndTransactionRecord(), records.AbortTransactionRecord()]))
        else:
            reign.append(records.BeginTransactionRecord(name="x"))
        quorum.commit()
        in_transaction[0] = not in_transaction[0]
    elif act <= 5:
        quorum.commit(choices.choice([1, 2, None]))
    elif act == 6:
        quorum.elect(choices.randint(1, 3), kept=choices.randint(0, 2), old_leader_knows=choices.random() < 0.5)
    elif act == 7:
        quorum.take_snapshot()
    else:
        quorum.down = {node for node in (1, 2, 3) if choices.random() < 0.3}
        for old in quorum.stale.values():
            old.append(config(choices.randrange(6), "stale"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_images_are_of_committed_records_whatever_happens(seed: int) -> None:
    choices = random.Random(seed)
    driver = Driver(first=choices.randint(1, 3), max_bytes=choices.choice([90, 300, 5000]))
    in_transaction = [False]
    offset = -1
    for _ in range(40):
        disturb(driver.quorum, choices, in_transaction)
        for _ in range(choices.randrange(4)):
            before = driver.observer.image
            published = driver.step(is_lost=choices.random() < 0.1)
            if published is not None:
                assert published.delta.image is before
                assert published.delta.build(*driver.observer.image[:3]) == published.image
            assert driver.observer.image.offset >= offset, "an image never goes back"
            offset = driver.observer.image.offset
        driver.assert_committed()
    driver.quorum.down, driver.quorum.stale = set(), {}
    driver.quorum.commit()
    driver.catch_up(400)
    assert driver.observer.image == list(driver.quorum.images().values())[-1]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200), code=st.sampled_from([0, 6, 41, 74, 75, 98]), epoch=st.integers(-1, 3))
def test_no_answer_of_garbage_is_replayed(data: bytes, code: int, epoch: int) -> None:
    driver = Driver()
    driver.catch_up()
    leader = fetch.LeaderIdAndEpoch(leader_id=1, leader_epoch=epoch)
    answer = fetch.PartitionData(error_code=code, current_leader=leader, high_watermark=99, records=data)
    assert driver.observer.take_answer(fetch_answer(answer), 0) is None
    assert driver.observer.image.offset == 0
