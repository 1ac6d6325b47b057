"""A followed partition does the work of a fetch loop on its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import LogBench, append, batch, read_bytes, values
from tidelog.broker.cluster.fetching.session import FetchKey
from tidelog.broker.cluster.fetching.work import Append, LogPosition, StartAt, TruncateTo, TruncateToEpochEnd
from tidelog.broker.replica.replication.following import Following
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError

KEY = FetchKey(b"t" * 16, 0)
EPOCH = 3


class Pair:
    """A leader's log of ten records in epoch 3, and a partition that follows it."""

    def __init__(self, root: Path, **configs: Any) -> None:
        self.leader = LogBench(str(root / "leader")).open()
        for _ in range(10):
            append(self.leader, batch(1), epoch=EPOCH)
        self.checkpoints: list[tuple[int, int]] = []
        """The log's end and recovery point, each time they were written."""
        log = LogBench(str(root / "follower"), **configs).open()
        self.following = Following(log, lambda: self.checkpoints.append((log.log_end_offset, log.recovery_point)))

    @property
    def log(self) -> UnifiedLog:
        """The follower's log."""
        return self.following.log

    def work(self, offset: int = 0, *, high_watermark: int = 0, log_start: int = 0, epoch: int = EPOCH) -> Append:
        """Return the leader's records from an offset on."""
        records = memoryview(read_bytes(self.leader, offset)) if offset < 10 else memoryview(b"")
        return Append(KEY, epoch, offset, records, high_watermark, log_start)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_records_are_appended_and_the_position_moves(pair: Pair) -> None:
    assert pair.following.position == LogPosition(0, -1, 0)
    assert pair.following.do(pair.work())
    assert pair.following.position == LogPosition(10, EPOCH, 0)
    assert values(pair.log) == values(pair.leader)


def test_records_for_another_offset_are_not_appended(pair: Pair) -> None:
    """The log has moved since the request: it is asked for where it is now, without a pause."""
    assert pair.following.do(pair.work(4))
    assert pair.log.log_end_offset == 0


def test_records_of_another_leader_epoch_are_not_appended(pair: Pair) -> None:
    assert not pair.following.do(pair.work(epoch=EPOCH - 1))
    assert pair.log.log_end_offset == 0


@pytest.mark.parametrize(("sent", "taken"), [(4, 4), (10, 10), (12, 10), (-1, 0)])
def test_the_high_watermark_is_the_leaders_within_the_log(pair: Pair, sent: int, taken: int) -> None:
    pair.following.do(pair.work(high_watermark=sent))
    assert pair.log.high_watermark == taken


def test_a_high_watermark_comes_without_records(pair: Pair) -> None:
    pair.following.do(pair.work())
    assert pair.following.do(pair.work(10, high_watermark=7))
    assert pair.log.high_watermark == 7


@pytest.mark.parametrize(
    "work",
    [TruncateToEpochEnd(KEY, EPOCH, EPOCH, 4), TruncateTo(KEY, EPOCH, 4), StartAt(KEY, EPOCH, 20)],
    ids=["to the end of an epoch", "to an offset", "anew"],
)
def test_a_truncation_for_a_former_leader_cuts_nothing(
    pair: Pair, work: TruncateToEpochEnd | TruncateTo | StartAt
) -> None:
    """The truncation waited for a thread until this broker led a later epoch, in which its records may be committed.
    The fetch loop learns that nothing was truncated."""
    pair.following.do(pair.work())
    pair.log.leader_epochs.assign(EPOCH + 1, 10)
    before = pair.following.position
    assert not pair.following.do(work)
    assert pair.following.position == before
    assert values(pair.log) == values(pair.leader)


def test_a_former_leaders_high_watermark_is_not_taken(pair: Pair) -> None:
    """This broker leads by now: its watermark is its own."""
    pair.following.do(pair.work(high_watermark=5))
    pair.log.leader_epochs.assign(EPOCH + 1, 10)
    pair.following.do(pair.work(10, high_watermark=9))
    assert pair.log.high_watermark == 5


@pytest.mark.parametrize(("sent", "taken"), [(4, 4), (8, 0)])
def test_the_log_start_follows_up_to_the_high_watermark(pair: Pair, sent: int, taken: int) -> None:
    pair.following.do(pair.work(high_watermark=5, log_start=sent))
    assert pair.log.log_start_offset == taken


def test_damaged_records_are_reported(pair: Pair) -> None:
    work = pair.work()
    damaged = bytearray(work.records)
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="wrong checksum"):
        pair.following.do(work._replace(records=memoryview(damaged)))
    assert pair.log.log_end_offset == 9


@pytest.mark.parametrize(
    ("work", "end"),
    [
        (TruncateToEpochEnd(KEY, EPOCH + 1, EPOCH, 6), 6),
        (TruncateTo(KEY, EPOCH, 4), 4),
        (StartAt(KEY, EPOCH, 20), 20),
    ],
)
def test_checkpoints_are_written_before_and_after_a_cut(pair: Pair, work: Any, end: int) -> None:
    """A point above the cut would say that records are synced which a power loss takes, in the cut or after it."""
    pair.following.do(pair.work(high_watermark=4))
    pair.log.flush()
    assert pair.log.recovery_point == 10
    assert pair.following.do(work)
    assert (pair.log.log_end_offset, pair.checkpoints) == (end, [(10, 0), (end, 0)])
    pair.checkpoints.clear()
    pair.following.do(TruncateTo(KEY, EPOCH, end))
    assert pair.checkpoints == [(end, 0)], "nothing is to be cut"


def test_an_epoch_without_a_record_is_removed_and_nothing_is_truncated_again(pair: Pair) -> None:
    """This replica led epoch 5 and wrote nothing: without the truncation its epochs would never agree with the
    leader's."""
    pair.following.do(pair.work())
    pair.log.leader_epochs.assign(5, 10)
    work = TruncateToEpochEnd(KEY, 6, EPOCH, 10)
    assert pair.following.do(work)
    assert pair.following.position == LogPosition(10, EPOCH, 0)
    assert not pair.following.do(work), "it would come again at once"


def test_with_flush_messages_an_append_is_synced(tmp_path: Path) -> None:
    pair = Pair(tmp_path, flush_messages=1)
    assert pair.following.is_synced_at_once
    pair.following.do(pair.work())
    assert pair.log.recovery_point == 10


def test_a_checkpoint_that_could_not_be_written_is_written_before_the_cut(pair: Pair) -> None:
    pair.following.do(pair.work())
    pair.log.flush()
    written: list[tuple[int, int]] = []
    full = [KafkaStorageError("no room")]

    def write() -> None:
        if full:
            raise full.pop()
        written.append((pair.log.log_end_offset, pair.log.recovery_point))

    following = Following(pair.log, write)
    with pytest.raises(KafkaStorageError):
        following.do(TruncateTo(KEY, EPOCH, 4))
    assert following.do(TruncateTo(KEY, EPOCH, 4))
    assert written == [(10, 0), (4, 0)]


def test_no_flush_raises_the_recovery_point_within_a_cut(pair: Pair) -> None:
    pair.following.do(pair.work())
    points: list[int] = []

    def write() -> None:
        pair.log.flush()
        points.append(pair.log.recovery_point)

    Following(pair.log, write).do(TruncateTo(KEY, EPOCH, 4))
    assert points == [0, 4], "before the cut, and once it was durable"
