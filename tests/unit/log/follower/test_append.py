"""A follower's log: raw appends, epochs, producers, rolls, refused appends, truncation by epochs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import NOW_MS, LogBench, append, batch, marker, producer_batch, read_bytes, read_records, values
from tidelog.log.check import check_directory
from tidelog.log.fetch import FetchIsolation
from tidelog.log.follower import append as follower_append
from tidelog.log.follower.append import append_as_follower
from tidelog.log.follower.truncation import truncate_to_epoch_end
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError

FOREVER = 1 << 30
SIZES: dict[str, Any] = {"segment_bytes": 2000, "index_interval_bytes": 200, "file_delete_delay_ms": 0}


class Pair:
    """A leader's log and a follower's, each in its directory."""

    def __init__(self, root: Path) -> None:
        self.benches = [LogBench(str(root / name), **SIZES) for name in ("leader", "follower")]
        self.leader, self.follower = (bench.open() for bench in self.benches)

    def copy(self, max_bytes: int = 1 << 20, max_epoch: int = FOREVER) -> None:
        """Fetch until the follower has all records of the leader."""
        leader, follower = self.leader, self.follower
        while follower.log_end_offset < leader.log_end_offset:
            read = read_bytes(leader, follower.log_end_offset, max_bytes)
            assert append_as_follower(follower, memoryview(read), max_epoch) is not None
        follower.update_high_watermark(leader.high_watermark)

    def files(self, ending: str = ".log") -> list[dict[str, bytes]]:
        """Read the contents by name, of leader and follower."""
        return [
            {path.name: path.read_bytes() for path in Path(bench.directory).glob(f"*{ending}")}
            for bench in self.benches
        ]

    def reopen_follower(self, *, clean: bool) -> UnifiedLog:
        self.follower.close()
        self.follower = self.benches[1].open(clean=clean)
        return self.follower


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def fill(log: UnifiedLog, count: int, epoch: int = 0) -> None:
    for number in range(count):
        append(log, batch(2, value=b"v%d" % log.log_end_offset, timestamp=NOW_MS + number), epoch=epoch)


def test_a_log_whose_next_segment_cannot_be_created_is_out_of_service(pair: Pair) -> None:
    """If the log only raised the error, its follower would fetch the same records again and again."""
    fill(pair.leader, 2)
    pair.copy()
    fill(pair.leader, 60)
    Path(pair.benches[1].directory).rename(f"{pair.benches[1].directory}-away")
    with pytest.raises(KafkaStorageError):
        pair.copy()
    assert not pair.follower.is_serving


class TestAppend:
    @pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
    def test_segments_are_equal_byte_for_byte(self, pair: Pair, max_bytes: int) -> None:
        fill(pair.leader, 60)
        pair.copy(max_bytes)
        leader, follower = pair.files()
        assert len(leader) > 2
        assert follower == leader

    def test_any_timestamp_is_copied_and_none_rolls_a_segment_by_itself(self, pair: Pair) -> None:
        log = pair.follower
        for number, timestamp in enumerate([NOW_MS, -(2**63), -1, NOW_MS, 2 - 2**63, -(2**62), 0] * 3):
            received = batch(1, timestamp=timestamp)
            received[:8] = number.to_bytes(8, "big")
            assert append_as_follower(log, memoryview(received), FOREVER) is not None
        assert len(list(log.segments)) == 1
        log = pair.reopen_follower(clean=False)
        assert (log.log_end_offset, len(list(log.segments))) == (21, 1)
        assert check_directory(pair.benches[1].file_system, pair.benches[1].directory) == []

    def test_indices_are_those_of_a_rebuild(self, pair: Pair) -> None:
        fill(pair.leader, 60)
        pair.copy()
        pair.follower.close()
        assert check_directory(pair.benches[1].file_system, pair.benches[1].directory) == []
        before = pair.files(".index")[1], pair.files(".timeindex")[1]
        assert any(before[0].values())
        pair.follower = pair.benches[1].open()
        pair.follower.close()
        assert (pair.files(".index")[1], pair.files(".timeindex")[1]) == before

    def test_every_offset_is_found(self, pair: Pair) -> None:
        fill(pair.leader, 60)
        pair.copy()
        for offset in range(120):
            assert read_records(pair.follower, offset)[0].offset == offset
        found = pair.follower.fetch_offset_by_timestamp(NOW_MS + 30)
        assert found == pair.leader.fetch_offset_by_timestamp(NOW_MS + 30)

    def test_leader_epochs_come_from_the_batches(self, pair: Pair) -> None:
        for epoch in (0, 3, 4):
            fill(pair.leader, 3, epoch)
        pair.copy()
        assert pair.follower.leader_epochs.entries == pair.leader.leader_epochs.entries

    def test_producers_are_known(self, pair: Pair) -> None:
        for sequence in range(20):
            append(pair.leader, producer_batch(sequence))
            append(pair.leader, producer_batch(sequence, producer_id=8))
        pair.copy()
        assert append(pair.follower, producer_batch(19)).duplicate
        assert append(pair.follower, producer_batch(15, producer_id=8)).duplicate
        assert append(pair.follower, producer_batch(20)).first_offset == 40

    @pytest.mark.parametrize("max_bytes", [1, 1 << 20])
    def test_transactions_are_read_as_at_the_leader(self, pair: Pair, max_bytes: int) -> None:
        for number, commit in enumerate((True, False, True)):
            append(pair.leader, producer_batch(2 * number, 2, transactional=True))
            append(pair.leader, marker(7, commit=commit), origin=AppendOrigin.COORDINATOR)
        append(pair.leader, producer_batch(6, transactional=True))
        pair.copy(max_bytes)
        assert pair.follower.last_stable_offset == pair.leader.last_stable_offset == 9
        reads = [
            log.read(0, 1 << 20, isolation=FetchIsolation.TXN_COMMITTED, min_one_message=True).aborted_transactions
            for log in (pair.leader, pair.follower)
        ]
        assert reads[0] == reads[1] != []

    def test_the_last_stable_offset_waits_for_the_high_watermark(self, pair: Pair) -> None:
        """An ended transaction is shown when its marker is committed, here as at the leader."""
        append(pair.leader, producer_batch(0, 2, transactional=True))
        append(pair.leader, marker(7, commit=True), origin=AppendOrigin.COORDINATOR)
        pair.leader.high_watermark = 2
        pair.copy()
        assert pair.follower.last_stable_offset == 0
        pair.follower.update_high_watermark(3)
        assert pair.follower.last_stable_offset == 3

    def test_a_cut_last_batch_is_left_out(self, pair: Pair) -> None:
        fill(pair.leader, 2)
        read = read_bytes(pair.leader, 0)
        info = append_as_follower(pair.follower, memoryview(read)[:-1], FOREVER)
        assert info is not None
        assert (info.first_offset, info.last_offset, pair.follower.log_end_offset) == (0, 1, 2)
        assert append_as_follower(pair.follower, memoryview(read)[:3], FOREVER) is None

    def test_a_later_epoch_is_left_out(self, pair: Pair) -> None:
        """The leader was replaced while it answered: what its successor wrote is fetched in that one's epoch."""
        fill(pair.leader, 3, epoch=2)
        fill(pair.leader, 3, epoch=3)
        read = memoryview(read_bytes(pair.leader, 0))
        assert append_as_follower(pair.follower, read, 1) is None
        info = append_as_follower(pair.follower, read, 2)
        assert info is not None
        assert (info.last_offset, pair.follower.log_end_offset, pair.follower.leader_epochs.latest_epoch) == (5, 6, 2)
        assert append_as_follower(pair.follower, read[info.size_bytes :], 2) is None

    def test_nothing_is_appended_in_an_older_epoch_than_the_logs(self, pair: Pair) -> None:
        """This broker leads in the meantime, or follows a newer leader."""
        fill(pair.leader, 3, epoch=2)
        pair.follower.leader_epochs.assign(3, 0)
        assert append_as_follower(pair.follower, memoryview(read_bytes(pair.leader, 0)), 2) is None

    def test_gaps_of_a_cleaner_are_kept(self, pair: Pair) -> None:
        fill(pair.leader, 4)
        first, third = read_bytes(pair.leader, 0, 1), read_bytes(pair.leader, 4, 1)
        append_as_follower(pair.follower, memoryview(first + third), FOREVER)
        assert sorted(values(pair.follower)) == [0, 1, 4, 5]

    def test_an_empty_log_may_begin_within_a_batch(self, pair: Pair) -> None:
        """Records were deleted up to the middle of the leader's batch: the batch is taken whole."""
        append(pair.leader, batch(10))
        pair.follower.truncate_fully_and_start_at(4)
        pair.copy()
        assert (pair.follower.segments.first.base_offset, pair.follower.log_end_offset) == (0, 10)

    def test_offsets_too_far_for_a_segment_begin_another(self, pair: Pair) -> None:
        fill(pair.leader, 1)
        far = bytearray(read_bytes(pair.leader, 0))
        far[:8] = (5_000_000_000).to_bytes(8, "big")
        pair.copy()
        append_as_follower(pair.follower, memoryview(far), FOREVER)
        assert [segment.base_offset for segment in pair.follower.segments] == [0, 5_000_000_000]
        assert pair.follower.log_end_offset == 5_000_000_002

    def test_a_full_index_begins_another_segment(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path)
        bench = LogBench(str(tmp_path / "narrow"), **{**SIZES, "segment_bytes": 1 << 20, "segment_index_bytes": 36})
        narrow = bench.open()
        fill(pair.leader, 60)
        read = b"".join(read_bytes(pair.leader, segment.base_offset) for segment in pair.leader.segments)
        append_as_follower(narrow, memoryview(read), FOREVER)
        assert len(narrow.segments) > 3
        assert values(narrow) == values(pair.leader)
        narrow.close()
        assert check_directory(bench.file_system, bench.directory) == []

    def test_a_batch_larger_than_a_segment_is_appended(self, pair: Pair) -> None:
        """The leader accepted it when its segments were larger."""
        large = LogBench(str(pair.benches[0].root) + "-large").open()
        append(large, batch(1, value=b"x" * 5000))
        append_as_follower(pair.follower, memoryview(read_bytes(large, 0)), FOREVER)
        assert pair.follower.log_end_offset == 1


class TestDamage:
    def damaged(self, pair: Pair, at: int, byte: int) -> memoryview:
        """Return three batches of the leader, the second with one changed byte."""
        fill(pair.leader, 3)
        size = len(read_bytes(pair.leader, 0, 1))
        read = bytearray(read_bytes(pair.leader, 0))
        read[size + at] = byte
        return memoryview(read)

    @pytest.mark.parametrize(
        ("at", "byte", "reason"),
        [(70, 255, "checksum"), (17, 255, "checksum"), (7, 0, "begins before 2"), (16, 1, "message format 1")],
    )
    def test_damaged_records_are_not_appended(self, pair: Pair, at: int, byte: int, reason: str) -> None:
        records = self.damaged(pair, at, byte)
        with pytest.raises(CorruptMessageError, match=reason):
            append_as_follower(pair.follower, records, FOREVER)
        assert sorted(values(pair.follower)) == [0, 1], "the batch before it is sound"

    @pytest.mark.parametrize(
        ("base_offset", "reason"),
        [
            (120, r"00000000000000000000\.(time)?index is full"),
            (5_000_000_000, "too far from 0, where its segment begins"),
        ],
    )
    def test_what_stopped_the_walk_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base_offset: int, reason: str
    ) -> None:
        """Even if the roll that should make room made none."""
        bench = LogBench(str(tmp_path), **{**SIZES, "segment_bytes": 1 << 20, "segment_index_bytes": 36})
        log = bench.open()
        monkeypatch.setattr(follower_append, "_roll", lambda log, _base_offset: log.segments.active)
        sound = batch(2)
        while log.segments.active.offset_index.room > 0 and log.segments.active.time_index.room > 0:
            sound[:8] = log.log_end_offset.to_bytes(8, "big")
            append_as_follower(log, memoryview(sound), FOREVER)
        sound[:8] = base_offset.to_bytes(8, "big")
        several = bytearray(sound * 4)  # an entry is not due at each batch
        for number in range(4):
            start = number * len(sound)
            several[start : start + 8] = (base_offset + 2 * number).to_bytes(8, "big")
        with pytest.raises(CorruptMessageError, match=reason):
            append_as_follower(log, memoryview(several), FOREVER)
        assert len(log.segments) == 1

    def test_impossible_lengths_are_reported(self, pair: Pair) -> None:
        with pytest.raises(CorruptMessageError, match="impossible"):
            append_as_follower(pair.follower, self.damaged(pair, 8, 255), FOREVER)

    def test_offsets_that_are_here_are_refused(self, pair: Pair) -> None:
        fill(pair.leader, 2)
        pair.copy()
        with pytest.raises(CorruptMessageError, match="begins before 4"):
            append_as_follower(pair.follower, memoryview(read_bytes(pair.leader, 0)), FOREVER)


class TestTruncation:
    def test_truncates_to_the_end_of_the_epoch_in_its_own_log(self, pair: Pair) -> None:
        fill(pair.follower, 3, epoch=1)
        fill(pair.follower, 3, epoch=2)
        assert truncate_to_epoch_end(pair.follower, 1, 100)
        assert pair.follower.log_end_offset == 6

    def test_truncates_to_the_end_of_the_epoch_at_the_leader(self, pair: Pair) -> None:
        fill(pair.follower, 3, epoch=1)
        assert truncate_to_epoch_end(pair.follower, 1, 4)
        assert (pair.follower.log_end_offset, pair.follower.leader_epochs.latest_epoch) == (4, 1)

    def test_an_unknown_epoch_cuts_at_the_leaders_offset(self, pair: Pair) -> None:
        fill(pair.follower, 3, epoch=1)
        assert truncate_to_epoch_end(pair.follower, -1, 2)
        assert pair.follower.log_end_offset == 2

    def test_an_epoch_without_a_record_goes(self, pair: Pair) -> None:
        """It led epoch 5 and wrote nothing: asked for 5 again it would never agree with its leader."""
        fill(pair.follower, 3, epoch=1)
        pair.follower.leader_epochs.assign(5, 6)
        assert truncate_to_epoch_end(pair.follower, 1, 6)
        assert (pair.follower.log_end_offset, pair.follower.leader_epochs.latest_epoch) == (6, 1)
        assert not truncate_to_epoch_end(pair.follower, 1, 6)

    def test_truncated_committed_records_are_logged(self, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
        fill(pair.follower, 3, epoch=1)
        truncate_to_epoch_end(pair.follower, 1, 4)
        assert "lost committed records: offsets 4 to 5" in caplog.text


def committed_of(log: UnifiedLog, end: int) -> dict[int, bytes | None]:
    return {offset: value for offset, value in values(log, log.log_start_offset).items() if offset < end}


class Histories:
    """Two logs that lead in turn, in a random order: records that only one of them has, epochs, producers, restarts."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.pair = Pair(root)
        self.epoch = 1
        self.sequences: dict[int, int] = {}
        self.pair.leader.leader_epochs.assign(1, 0)

    def write(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            producer = self.random.choice([-1, 7, 8])
            if producer < 0:
                records = batch(self.random.randint(1, 3), value=b"%d" % self.epoch)
            else:
                known = self.pair.leader.producer_state.producers.get(producer)
                sequence = 0 if known is None else known.last_sequence + 1
                records = producer_batch(sequence, producer_id=producer)
            self.pair.leader.append_as_leader(memoryview(records), self.epoch)

    def fetch(self) -> None:
        """Fetch once as the follower, with the leader's check of the epoch; what both have is committed."""
        leader, follower = self.pair.leader, self.pair.follower
        last = follower.leader_epochs.latest_epoch
        epoch, end_offset = leader.leader_epochs.end_offset_for(last, leader.log_end_offset)
        if last >= 0 and (epoch < last or end_offset < follower.log_end_offset):
            assert truncate_to_epoch_end(follower, epoch, end_offset), "no progress"
            return
        read = read_bytes(leader, follower.log_end_offset, self.random.choice([1, 500, 1 << 20]))
        append_as_follower(follower, memoryview(read), self.epoch)
        leader.update_high_watermark(max(leader.high_watermark, follower.log_end_offset))
        follower.update_high_watermark(leader.high_watermark)

    def turn(self) -> None:
        """Let the follower lead, once it has all committed records."""
        pair = self.pair
        if pair.follower.log_end_offset >= pair.leader.high_watermark:
            self.epoch += 1
            pair.leader, pair.follower = pair.follower, pair.leader
            pair.benches.reverse()
            pair.leader.leader_epochs.assign(self.epoch, pair.leader.log_end_offset)

    def restart(self) -> None:
        watermark = self.pair.follower.high_watermark
        self.pair.reopen_follower(clean=self.random.random() < 0.5).update_high_watermark(watermark)


@pytest.mark.parametrize("seed", range(8))
def test_logs_that_lead_in_turn_end_equal_and_keep_committed_records(tmp_path: Path, seed: int) -> None:
    world = Histories(tmp_path, seed)
    acts = [world.write] * 3 + [world.fetch] * 6 + [world.turn, world.restart]
    committed: dict[int, bytes | None] = {}
    for _ in range(60):
        world.random.choice(acts)()
        pair = world.pair
        for log in (pair.leader, pair.follower):
            have = values(log)
            assert all(have[offset] == value for offset, value in committed.items() if offset < log.high_watermark)
        assert committed.keys() <= values(pair.leader).keys()
        committed.update(committed_of(pair.leader, pair.leader.high_watermark))
    for _ in range(100):
        world.fetch()
    leader, follower = world.pair.leader, world.pair.follower
    assert values(follower) == values(leader)
    begun = [entry for entry in leader.leader_epochs.entries if entry.start_offset < leader.log_end_offset]
    assert list(follower.leader_epochs.entries) == begun
    assert {n: e.last_sequence for n, e in follower.producer_state.producers.items()} == {
        n: e.last_sequence for n, e in leader.producer_state.producers.items()
    }
    for bench, log in zip(world.pair.benches, (leader, follower), strict=True):
        log.close()
        assert check_directory(bench.file_system, bench.directory) == []


def test_walk_that_another_thread_takes_meanwhile_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TakenMeanwhile(list[Any]):
        def __bool__(self) -> bool:
            return True

    pair = Pair(tmp_path)
    append(pair.leader, batch(3))
    monkeypatch.setattr(follower_append, "_idle_scans", TakenMeanwhile())
    pair.copy()
    assert values(pair.follower) == values(pair.leader)
