"""A starting member checks that the quorum's log has the record that it applied last, and refuses the quorum
otherwise."""

from __future__ import annotations

import os
import random
from copy import deepcopy

import pytest

from tests.support.model_quorum import ModelQuorum, UnreachableError
from tidelog.broker.cluster.observing.metadata_position import NOWHERE, UNKNOWN_TIME, MetadataPosition
from tidelog.broker.cluster.observing.metadata_tail import MetadataLostError
from tidelog.broker.cluster.observing.observer import Observer, ObserverConfig
from tidelog.protocol.messages import fetch, fetch_snapshot
from tidelog.protocol.metadata_records import records
from tidelog.protocol.schema.fields import Message

SEEDS = int(os.environ.get("TIDELOG_OBSERVER_SEEDS", "60"))
REFUSAL = "has acted upon metadata up to offset"


def config(number: int) -> Message:
    return records.ConfigRecord(resource_type=2, resource_name=f"t-{number}", name="retention.ms", value="1")


def grow(quorum: ModelQuorum, count: int = 3) -> None:
    """Commit batches of two records."""
    for number in range(count):
        quorum.reign.append(config(number), config(number + 1))
    quorum.commit()


def elect(quorum: ModelQuorum, leader: int) -> None:
    quorum.elect(leader)
    quorum.commit()


def join(quorum: ModelQuorum, known: MetadataPosition = NOWHERE) -> Observer:
    """Return an observer that has caught up, and has checked the record that the member knows. Raises
    MetadataLostError."""
    observer = Observer(ObserverConfig(tuple(quorum.addresses.values()), last_position=known))
    for _ in range(200):
        question = observer.next_question()
        try:
            answer = quorum.answer(question.address, question.request)
        except UnreachableError as error:
            observer.take_failure(str(error), question.not_before_ms)
            continue
        assert isinstance(answer, fetch.FetchResponse | fetch_snapshot.FetchSnapshotResponse)
        observer.take_answer(answer, question.not_before_ms)
        if observer.is_caught_up and observer.is_checked:
            return observer
    raise AssertionError(f"not caught up: {observer.last_failure}")


def position_in(quorum: ModelQuorum) -> MetadataPosition:
    """Return the position that a member saves once it has caught up."""
    observer = join(quorum)
    return observer.position_of(observer.image)


def restored(backup: ModelQuorum) -> ModelQuorum:
    """Return the quorum as it was in a backup; later it continues with other records than the lost one."""
    quorum = deepcopy(backup)
    quorum.reign.clock_ms = 1_000_000
    return quorum


@pytest.mark.parametrize("elections", [1, 2], ids=["same epoch", "newer epoch"])
def test_a_restored_quorum_that_has_grown_past_the_position_is_refused(elections: int) -> None:
    """Both quorums hold an election after the backup: their epochs are equal, and their records differ."""
    quorum = ModelQuorum()
    grow(quorum)
    other = restored(quorum)
    elect(quorum, 2)
    grow(quorum)
    known = position_in(quorum)
    for _ in range(elections):
        elect(other, 2)
    grow(other, 9)
    with pytest.raises(MetadataLostError, match=f"{REFUSAL} {known.offset} of epoch 2.*restored from a backup"):
        join(other, known)
    assert join(quorum, known).image.offset == known.offset


def test_a_restored_quorum_with_a_newer_snapshot_is_refused_by_the_records_of_its_log() -> None:
    """An observer begins with the newest snapshot, also where the log goes back further."""
    quorum = ModelQuorum()
    grow(quorum)
    other = restored(quorum)
    grow(quorum)
    known = position_in(quorum)
    elect(other, 2)
    grow(other, 9)
    cut = deepcopy(other)
    cut.take_snapshot()
    assert other.reign.snapshot is None
    assert join(cut, known).is_checked, "the log does not reach back: it cannot tell"
    other.reign.snapshot = cut.reign.snapshot
    with pytest.raises(MetadataLostError, match=REFUSAL):
        join(other, known)


def test_a_snapshot_that_is_newer_and_of_an_older_epoch_is_another_quorums() -> None:
    quorum = ModelQuorum()
    other = restored(quorum)
    for leader in (2, 3, 2):
        elect(quorum, leader)
    known = position_in(quorum)
    grow(other, 9)
    other.take_snapshot()
    for leader in (2, 3, 2, 3):
        elect(other, leader)
    with pytest.raises(MetadataLostError, match=f"{REFUSAL} 3 of epoch 4.*snapshot .*which is of epoch 1"):
        join(other, known)


def is_whole(quorum: ModelQuorum) -> bool:
    """Return whether a snapshot can be written: it ends with a batch (MetadataProvenance.isOffsetBatchAligned)."""
    quorum.commit()
    end = list(quorum.images())[-1] + 1
    return end in {batch.next_offset for batch in quorum.reign.batches}


def step(quorum: ModelQuorum, rng: random.Random) -> None:
    """Do one random thing that can happen to a healthy quorum."""
    what = rng.randrange(6)
    if what == 0:
        elect(quorum, rng.randint(1, 3))
    elif what == 1:
        quorum.elect(rng.randint(1, 3), kept=rng.randint(0, 2), old_leader_knows=rng.random() < 0.5)
        quorum.commit()
    elif what == 2:
        held = [records.BeginTransactionRecord(), config(1)]
        quorum.reign.append(*([config(0)] if rng.random() < 0.5 else []), *held)
        quorum.reign.append(config(2), rng.choice([records.EndTransactionRecord, records.AbortTransactionRecord])())
        quorum.commit(rng.choice([1, None]))
    elif what == 3 and is_whole(quorum):
        before = (quorum.reign.batches, quorum.reign.start)
        quorum.take_snapshot()
        if rng.random() < 0.5:  # the log is cut later
            quorum.reign.batches, quorum.reign.start = before
    else:
        grow(quorum, 1)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_sound_quorum_is_refused_and_no_other_is_joined_whose_log_can_tell(seed: int) -> None:
    rng = random.Random(seed)
    quorum = ModelQuorum()
    for _ in range(rng.randint(0, 12)):
        step(quorum, rng)
    other = restored(quorum)
    for _ in range(rng.randint(1, 12)):
        step(quorum, rng)
    quorum.commit()
    known = position_in(quorum)
    for _ in range(rng.randint(0, 12)):
        step(quorum, rng)
    elect(quorum, 1)
    assert not known.shortfall(join(quorum, known).image)
    fork = other.reign.end
    for _ in range(rng.randint(1, 40)):
        step(other, rng)
    elect(other, 1)
    if known.offset < max(fork, other.reign.start) or known.timestamp_ms == UNKNOWN_TIME:
        return  # the same record; or the log does not reach back; or epochs alone were known, and are the same
    try:
        joined = join(other, known)
    except MetadataLostError:
        return
    assert known.shortfall(joined.image), "it joined a quorum that has other records"
