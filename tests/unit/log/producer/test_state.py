"""The short check for a batch that is its producer's next one has the same result and state as the complete check."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_directory import memory_place
from tidelog.log.producer.snapshot import SnapshotEntry, decode_snapshot
from tidelog.log.producer.state import (
    DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    MAX_SEQUENCE,
    Marker,
    ProducerBatch,
    ProducerEntry,
    ProducerStateManager,
    producers_in_parts,
)
from tidelog.log.records.engine import IS_COMPILED
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaError

COUNTS = (1, 2, 5)
NEXT = 0
STEPS = st.lists(
    st.tuples(
        st.sampled_from([7, 8]),  # producer
        st.sampled_from([3, 3, 3, 3, 4, 2]),  # epoch
        st.sampled_from([NEXT] * 6 + [1, 3, -1, -2, -5, -MAX_SEQUENCE]),  # how far from the sequence that is due
        st.sampled_from(COUNTS),
        st.sampled_from(["plain"] * 6 + ["transactional", "commit", "abort"]),
    ),
    max_size=30,
)
LONGS, INTS = st.integers(-1, 2**63 - 1), st.integers(-1, 2**31 - 1)
SAVED = st.builds(SnapshotEntry, LONGS, st.integers(-1, 2**15 - 1), INTS, LONGS, INTS, LONGS, INTS, LONGS)


def state() -> ProducerStateManager:
    return ProducerStateManager(OsFileSystem(), str(Path("nowhere")), ManualTime())


def state_of(state: ProducerStateManager) -> object:
    """Return the whole state of a manager."""
    entries = {
        number: (entry.producer_epoch, list(entry.batches), entry.last_timestamp, entry.current_txn_first_offset,
                 entry.touched_ms)
        for number, entry in state.producers.items()
    }  # fmt: skip
    return entries, state.end_offset, state.first_unstable_offset


def append(state: ProducerStateManager, batch: ProducerBatch) -> str:
    """Check and apply a batch by the complete check; return the outcome."""
    known = state.find_duplicate(batch.producer_id, batch.producer_epoch, batch.first_sequence, batch.last_sequence)
    if known is not None:
        return "duplicate"
    try:
        state.check(batch, check_sequence=True)
    except KafkaError as error:
        return type(error).__name__
    state.update(batch)
    return "appended"


@given(STEPS, st.sampled_from([0, 41, MAX_SEQUENCE - 7, MAX_SEQUENCE]))
def test_the_short_and_the_complete_check_agree(steps: list[tuple[int, int, int, int, str]], first: int) -> None:
    long, short = state(), state()
    due: dict[int, int] = {}
    for offset, (producer, epoch, distance, count, kind) in enumerate(steps):
        if kind in ("commit", "abort"):
            marker = Marker(producer, 4, 0, 10 * offset, 0, kind == "abort")
            assert long.update_marker(marker) == short.update_marker(marker)
            continue
        sequence = (due.get(producer, first) + distance) & MAX_SEQUENCE
        last = (sequence + count - 1) & MAX_SEQUENCE
        offsets = (10 * offset, 10 * offset + count - 1)
        batch = ProducerBatch(producer, epoch, sequence, last, *offsets, 1000 + offset, kind == "transactional")
        outcome = append(long, batch)
        entry = None if batch.is_transactional else short.find_if_next(producer, epoch, sequence, last)
        if entry is None:
            assert append(short, batch) == outcome
        else:
            assert outcome == "appended"
            short.advance(entry, last, *offsets, batch.timestamp)
        assert state_of(short) == state_of(long)
        if outcome == "appended":
            due[producer] = (last + 1) & MAX_SEQUENCE


TURNS = st.tuples(st.sampled_from(["write", "write", "commit", "abort", "watermark"]), st.integers(0, 2))


@given(st.lists(TURNS, min_size=8, max_size=30))
def test_the_first_unstable_offset_is_that_of_the_first_transaction_without_a_committed_end(
    steps: list[tuple[str, int]],
) -> None:
    """Transactions end in another order than they began, and the high watermark is behind."""
    log, offset, watermark = state(), 0, 0
    begun: dict[int, int] = {}
    ended: list[tuple[int, int]] = []  # first offset, marker's
    for kind, which in steps:
        if kind == "write":
            log.update(ProducerBatch(which, 0, 0, 0, offset, offset, 0, True))
            begun.setdefault(which, offset)
            offset += 1
        elif kind == "watermark":
            watermark = min(watermark + which, offset)
            log.on_high_watermark(watermark)
        else:
            log.update_marker(Marker(which, 0, 0, offset, 0, kind == "abort"))
            if which in begun:
                ended.append((begun.pop(which), offset))
            offset += 1
        unstable = [*begun.values(), *(first for first, marker in ended if marker >= watermark)]
        assert log.first_unstable_offset == min(unstable, default=None)


def test_the_next_batch_of_a_producer_takes_the_short_check() -> None:
    short = state()
    assert short.find_if_next(7, 3, 0, 4) is None, "nothing is known of it"
    assert append(short, ProducerBatch(7, 3, 0, 4, 0, 4, 1000, False)) == "appended"
    assert short.find_if_next(7, 3, 5, 5) is short.producers[7]


@pytest.mark.parametrize("seed", range(30))
def test_a_walk_in_parts_gives_all_producers_that_exist_throughout(seed: int) -> None:
    """Between the parts producers are added, removed, and added again."""
    chance, time = random.Random(seed), ManualTime()
    producers = ProducerStateManager(OsFileSystem(), "nowhere", time)

    def write(producer_id: int) -> None:
        producers.update(ProducerBatch(producer_id, 0, 0, 0, 0, 0, 0, False))

    for producer_id in chance.sample(range(200), 100):
        write(producer_id)
    time.advance(DEFAULT_PRODUCER_ID_EXPIRATION_MS - 1)
    stay = set(chance.sample(sorted(producers.producers), 50))
    for producer_id in stay:
        write(producer_id)
    time.advance(1)
    found: list[int] = []
    for part in producers_in_parts(producers, 7):
        assert len(part) <= 7
        found += [entry.producer_id for entry in part]
        if chance.random() < 0.3:
            producers.remove_expired(threading.Lock())
        if chance.random() < 0.5:
            write(chance.randrange(200))
    assert stay <= set(found)
    producers.remove_expired(threading.Lock())
    ids = [entry.producer_id for part in producers_in_parts(producers, 7) for entry in part]
    assert sorted(ids) == sorted(producers.producers), "each once while none goes"


# -- markers ----------------------------------------------------------------------------------------------------------


def end(state: ProducerStateManager, epoch: int, version: int, *, is_abort: bool = False) -> str:
    """Check and apply a marker; return the outcome."""
    marker = Marker(7, epoch, 0, state.end_offset, 0, is_abort)
    try:
        state.check_marker(marker, version)
    except KafkaError as error:
        return type(error).__name__
    state.update_marker(marker)
    return "ended"


def transactional(state: ProducerStateManager, epoch: int) -> ProducerBatch:
    return ProducerBatch(7, epoch, 0, 0, state.end_offset, state.end_offset, 1000, is_transactional=True)


@pytest.mark.parametrize(
    ("version", "is_open", "marker_epoch", "outcome"),
    [
        (1, True, 4, "InvalidProducerEpochError"),
        (1, True, 5, "ended"),
        (1, True, 6, "ended"),
        (1, False, 5, "ended"),
        (2, True, 4, "InvalidProducerEpochError"),
        (2, True, 5, "InvalidProducerEpochError"),
        (2, True, 6, "ended"),
        (2, False, 4, "InvalidProducerEpochError"),
        (2, False, 5, "ended"),
    ],
)
def test_a_marker_ends_a_transaction_only_with_a_valid_epoch(
    version: int, is_open: bool, marker_epoch: int, outcome: str
) -> None:
    """Each transaction of version 2 has its own epoch, and its marker the next one; the marker may be repeated."""
    known = state()
    append(known, transactional(known, 4 if not is_open else 5))
    if not is_open:
        assert end(known, 5, version) == "ended"
    assert end(known, marker_epoch, version) == outcome


def test_a_marker_of_the_largest_epoch_ends_a_transaction_of_that_epoch() -> None:
    """Fencing at the highest epoch cannot raise the epoch."""
    known = state()
    append(known, transactional(known, 32_767))
    assert end(known, 32_767, 2) == "ended"


@pytest.mark.parametrize("seed", range(50))
def test_a_late_marker_ends_no_other_transaction(seed: int) -> None:
    """Markers of version 2 in any order, late and repeated: each transaction gets its own decision (KIP-1228)."""
    chance, known = random.Random(seed), state()
    decisions = {epoch: chance.choice((True, False)) for epoch in range(1, 9)}  # by the epoch of the marker
    on_the_way: list[int] = []
    for epoch in range(8):
        append(known, transactional(known, epoch))
        for late in chance.choices(on_the_way, k=min(3, len(on_the_way))):
            assert end(known, late, 2, is_abort=decisions[late]) == "InvalidProducerEpochError"
            assert known.producers[7].current_txn_first_offset >= 0, "still open"
        on_the_way.append(epoch + 1)
        assert end(known, epoch + 1, 2, is_abort=decisions[epoch + 1]) == "ended"


@settings(max_examples=30, deadline=None)
@given(st.lists(SAVED, max_size=5, unique_by=lambda item: item.producer_id))
def test_a_snapshot_keeps_all_fields_of_each_producer(saved: list[SnapshotEntry]) -> None:
    with TemporaryDirectory(dir=memory_place()) as directory:
        manager = ProducerStateManager(OsFileSystem(), directory, ManualTime())
        manager.producers = {item.producer_id: ProducerEntry.from_snapshot(item) for item in saved}
        manager.end_offset = 1
        manager.take_snapshot()
        path = Path(manager.snapshot_path(1))
        loaded = decode_snapshot(path.read_bytes(), str(path))
    assert loaded == [
        item if item.last_offset >= 0 else item._replace(last_sequence=-1, offset_delta=0) for item in saved
    ]


@pytest.mark.skipif(not IS_COMPILED, reason="uncompiled each field is an object and a call")
def test_a_snapshot_makes_no_call_of_python_for_a_producer(tmp_path: Path) -> None:
    """Appends of the log, and with them the loop, wait for it at each roll."""
    calls = []
    for count in (10, 5000):
        world = ProducerStateManager(OsFileSystem(), str(tmp_path), ManualTime())
        for number in range(count):
            world.update(ProducerBatch(number, 0, 0, 0, number, number, 0, is_transactional=False))
        events: Counter[str] = Counter()
        before = sys.getprofile()
        gc.disable()  # what other tests left may call Python when it goes
        sys.setprofile(lambda frame, event, _, events=events: events.update([event]))  # type: ignore[misc]
        try:
            world.take_snapshot()
        finally:
            sys.setprofile(before)
            gc.enable()
        calls.append(events)
    assert calls[0] == calls[1]
