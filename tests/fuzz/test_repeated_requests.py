"""Random requests to two brokers alike, one of which may answer those that repeat from their patterns: same answers,
same logs, same sessions.

A fetch may be answered without the half batch at its end, which no client reads; nothing else may differ.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker, batch
from tidelog.broker.controller.client_quotas import ClientQuotas, QuotaChange
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.repeated_fetch import RepeatedFetch
from tidelog.broker.requests.repeated_produce import RepeatedProduce
from tidelog.broker.requests.route import Pending
from tidelog.log.validation.validator import AppendOrigin
from tidelog.protocol.api_keys import ApiKey, request_header_version
from tidelog.protocol.errors import KafkaError, KafkaStorageError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
)
from tidelog.protocol.transferable import TransferableRecords
from tidelog.protocol.types import random_uuid

NEVER_PATTERNS = 1 << 60
KEYED = bytes(build_batch([Record(0, TIMESTAMP_MS, b"key", b"value", [])]))


def numbered(sequence: int, *, transactional: bool = False) -> bytes:
    options = BatchOptions(producer_id=5, producer_epoch=0, base_sequence=sequence, is_transactional=transactional)
    return bytes(batch(b"numbered", options=options))


def marker(*, committed: bool) -> bytes:
    ends = EndTransactionMarker(committed, 0)
    return bytes(end_transaction_marker(ends, timestamp=TIMESTAMP_MS, producer_id=5, producer_epoch=0))


RECORDS: list[bytes | None] = [
    bytes(batch(b"one")), bytes(batch(b"one", b"two", b"three")), bytes(batch(bytes(700))), KEYED,
    bytes(batch(b"z" * 300, b"y" * 300, options=BatchOptions(compression=1))),
    bytes(batch(b"z" * 300, options=BatchOptions(compression=4))),
    numbered(0), numbered(1), numbered(2), numbered(0, transactional=True),
    bytes(batch(b"one")) + bytes(batch(b"two")), bytes(batch(b"crc"))[:-1] + b"!", bytes(batch(b"short"))[:-1],
    bytes(batch(b"offset", options=BatchOptions(base_offset=4))), bytes(batch(bytes(3000))), bytes(61), b"", None,
]  # fmt: skip
CONFIGS: list[dict[str, str]] = [
    {}, {"cleanup.policy": "compact"}, {"message.timestamp.type": "LogAppendTime"}, {"max.message.bytes": "500"},
    {"compression.type": "gzip"}, {"compression.type": "zstd"}, {"flush.messages": "1"}, {"segment.bytes": "1048576"},
    {"message.timestamp.before.max.ms": "1000"},
]  # fmt: skip


class Produce(NamedTuple):
    """A produce request, sent ``times`` times."""

    times: int
    version: int
    acks: int
    timeout_ms: int
    transactional_id: str | None
    client_id: bytes
    partitions: tuple[int, ...]
    records: bytes | None


class Fetch(NamedTuple):
    """A fetch, sent ``times`` times: each behind the records the one before gave."""

    times: int
    version: int
    offset: int
    max_bytes: int
    limit: int
    min_bytes: int
    max_wait_ms: int
    isolation: int
    session: str
    leader_epoch: int
    last_epoch: int
    partitions: tuple[int, ...]


class Change(NamedTuple):
    """Something else happens."""

    what: str
    configs: dict[str, str]


def weighted(*often: object, seldom: tuple[object, ...]) -> st.SearchStrategy[object]:
    """Mostly one of ``often``, so that requests repeat."""
    return st.one_of(*[st.sampled_from(often)] * 5, st.sampled_from(seldom))


PRODUCES = st.builds(
    Produce, times=st.integers(1, 4), version=weighted(9, 12, 13, seldom=(3, 7, 10, 11)),
    acks=weighted(1, -1, seldom=(0, 2)), timeout_ms=weighted(1000, seldom=(0, 5)),
    transactional_id=weighted(None, seldom=("t", "")), client_id=weighted(b"tester", seldom=(b"", b"other")),
    partitions=weighted((0,), seldom=((1,), (0, 1), (7,), ())), records=st.sampled_from(RECORDS),
)  # fmt: skip
FETCHES = st.builds(
    Fetch, times=st.integers(1, 5), version=weighted(12, 13, 18, seldom=(4, 7, 11, 15)), offset=st.integers(0, 9),
    max_bytes=weighted(1000, 100_000, seldom=(0, 5, 200)), limit=weighted(100_000, seldom=(0, 100, 900)),
    min_bytes=weighted(1, seldom=(0, 500, 5000)), max_wait_ms=weighted(0, seldom=(100,)),
    isolation=st.sampled_from([0, 1]),
    session=weighted("none", "next", "create", seldom=("final", "stale", "unknown")),
    leader_epoch=weighted(-1, seldom=(0, 3)), last_epoch=weighted(-1, seldom=(0, 1)),
    partitions=weighted((0,), seldom=((), (1,), (0, 1), (7,))),
)  # fmt: skip
CHANGES = st.builds(
    Change,
    what=st.sampled_from(
        [
            "recreate",
            "configs",
            "configs",
            "roll",
            "log start",
            "truncate",
            "wait",
            "sessions",
            "quotas",
            "open",
            "open",
            "commit",
            "commit",
            "abort",
        ]
    ),
    configs=st.sampled_from(CONFIGS),
)
STEPS = st.lists(st.one_of(PRODUCES, PRODUCES, FETCHES, FETCHES, FETCHES, CHANGES), min_size=4, max_size=25)


class Side:
    """A broker and one connection to it."""

    def __init__(self, directory: str, *, repeats: bool) -> None:
        self.data = DataBroker(Path(directory))
        generator = random.Random(3)
        self.data.topics._new_topic_id = lambda: random_uuid(generator)
        self.data.broker.fetch_sessions._random = random.Random(4)
        self.data.topics.create_topic("t", 2)
        self.dispatcher = Dispatcher(self.data.broker)
        self.context = self.data.context(0)
        self.session_id = self.epoch = 0
        self.fetched_bytes = 0
        if not repeats:
            self.context.repeat_patience = NEVER_PATTERNS

    @property
    def topic_id(self) -> bytes:
        return self.data.broker.metadata.topics["t"].topic_id

    def ask(self, request: ProduceRequest | FetchRequest, version: int, client_id: bytes) -> bytes | str | None:
        """The frame of the answer, slices read; "closed" for a connection that is not to go on."""
        key = ApiKey(request.API_KEY)
        header = struct.pack(">hhih", key, version, 77, len(client_id)) + client_id
        header += b"\0" * (request_header_version(key, version) >= 2)
        frame = bytearray(header + request.encode(version))
        try:
            answer = self.dispatcher.dispatch(self.context, memoryview(frame))
        except CloseConnectionError:
            return "closed"
        finally:
            frame[:] = b"\xfe" * len(frame)  # the next receive overwrites it
        waited = ""
        if isinstance(answer, Pending):
            settled: list[object] = []
            answer.on_answer(settled.append)
            for _ in range(20):
                self.data.loop.run_soon()
            answer.hurry()
            answer, waited = settled[0], "waited"  # type: ignore[assignment]
        if answer is None:
            return None
        parts = answer if isinstance(answer, list) else [answer]
        return waited.encode() + b"".join(map(read_part, parts))

    def close(self) -> None:
        self.data.close()

    def produce(self, step: Produce) -> bytes | str | None:
        """The answer to one of its requests."""
        data = [
            PartitionProduceData(index=index, records=None if step.records is None else memoryview(step.records))
            for index in step.partitions
        ]
        request = ProduceRequest(
            acks=step.acks, timeout_ms=step.timeout_ms, transactional_id=step.transactional_id,
            topic_data=[TopicProduceData(name="t", topic_id=self.topic_id, partition_data=data)],
        )  # fmt: skip
        return self.ask(request, step.version, step.client_id)

    def fetch(self, step: Fetch, offset: int) -> tuple[bytes, FetchResponse, list[bytes]]:
        """Return the way of the answer, the answer without records, and each partition's whole batches."""
        partitions = [
            FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=step.max_bytes,
                current_leader_epoch=step.leader_epoch, last_fetched_epoch=step.last_epoch if step.version > 11 else -1,
            )
            for index in step.partitions
        ]  # fmt: skip
        topics = [FetchTopic(topic="t", topic_id=self.topic_id, partitions=partitions)] if partitions else []
        session_id, epoch = self.session_of(step)
        request = FetchRequest(
            max_wait_ms=step.max_wait_ms, min_bytes=step.min_bytes, max_bytes=step.limit,
            isolation_level=step.isolation, session_id=session_id, session_epoch=epoch, topics=topics,
        )  # fmt: skip
        frame = self.ask(request, step.version, b"tester")
        assert isinstance(frame, bytes)
        waited, frame = frame[: len(b"waited") * frame.startswith(b"waited")], frame.removeprefix(b"waited")
        start = 9 if step.version >= 12 else 8
        response = FetchResponse.decode(memoryview(frame)[start:], step.version)
        assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)
        if step.session in ("next", "create") and not response.error_code:
            if response.session_id != self.session_id:
                self.session_id, self.epoch = response.session_id, 0
            self.epoch += 1
        records = []
        for answer in (partition for topic in response.responses for partition in topic.partitions):
            found = bytes(answer.records or b"")  # type: ignore[arg-type]
            self.fetched_bytes += len(found)
            records.append(whole_batches(found))
            answer.records = b""
        return waited, response, records

    def session_of(self, step: Fetch) -> tuple[int, int]:
        """The session id and epoch such a request carries."""
        return {
            "none": (0, -1),
            "next": (self.session_id, self.epoch),
            "create": (0, 0),
            "final": (self.session_id, -1),
            "stale": (self.session_id, max(self.epoch - 1, 0)),
            "unknown": (77, 1),
        }[step.session]

    def change(self, step: Change) -> None:
        """Do what a request does not."""
        log = self.data.replica_manager.partition("t", 0).local_log
        changes: dict[str, Callable[[], object]] = {
            "recreate": self.recreate,
            "configs": lambda: self.data.topics.set_configs("t", step.configs),
            "roll": log.roll,
            "open": lambda: self.append_transaction(numbered(-1, transactional=True)),
            "commit": lambda: self.append_transaction(marker(committed=True)),
            "abort": lambda: self.append_transaction(marker(committed=False)),
            "log start": lambda: log.maybe_increment_log_start_offset(min(2, log.high_watermark)),
            "truncate": lambda: log.truncate_to(max(log.log_end_offset - 1, log.log_start_offset)),
            "wait": lambda: self.data.loop.advance(130_000),
            "sessions": self.data.broker.fetch_sessions.sessions.clear,
            "quotas": self.limit,
            "offline": lambda: log._directory_state.mark_offline(KafkaStorageError("gone")),
        }
        changes[step.what]()

    def append_transaction(self, records: bytes) -> None:
        """A batch or a marker of producer 5, past the checks of a coordinator; one that is refused changes nothing."""
        partition = self.data.replica_manager.partition("t", 0)
        with contextlib.suppress(KafkaError):
            partition.append_records(memoryview(bytearray(records)), origin=AppendOrigin.COORDINATOR)

    def limit(self) -> None:
        """Measure requests from now on, though none is ever too large."""
        changes = [QuotaChange(key, 1e12) for key in ("producer_byte_rate", "consumer_byte_rate")]
        ClientQuotas(self.data.broker.controller).alter((("client-id", "tester"),), changes, validate_only=False)

    def recreate(self) -> None:
        self.data.topics.delete_topic("t")
        self.data.topics.create_topic("t", 2)

    def state(self) -> list[object]:
        """Return the state that must be the same in the end: logs, offsets, counters, sessions."""
        manager, metrics = self.data.replica_manager, self.data.broker.metrics
        state: list[object] = [metrics.bytes_in.count, metrics.messages_in.count]
        assert metrics.bytes_out.count == self.fetched_bytes
        state += [(route.api_key, route.api_version, route.requests) for route in self.dispatcher.routes()]
        quotas = self.data.broker.services.quotas.made
        if quotas is not None:
            now = quotas.monotonic_ms()
            state += [(key, meter.total(now)) for key, meter in quotas._meters.items() if hasattr(meter, "total")]
        for index in range(2):
            partition = manager.partition("t", index)
            log = partition.local_log
            state += [partition.bytes_in, log.log_start_offset, log.high_watermark, log.log_end_offset]
            state += [segment.records.read_at(0, segment.records.size) for segment in log.segments]
        for session in self.data.broker.fetch_sessions.sessions.values():
            state += [session.session_id, session.epoch, session.last_used_ms]
            for target in session.targets.values():
                state += [getattr(target, name) for name in target.__slots__]
        return state


def read_part(part: object) -> bytes:
    if isinstance(part, TransferableRecords):
        data = os.pread(part.file.fileno(), part.size, part.position)
        part.release()
        return data
    assert isinstance(part, bytes)
    return part


def whole_batches(records: bytes) -> bytes:
    """Without the half batch at the end."""
    end = 0
    while end + 12 <= len(records):
        size = 12 + struct.unpack_from(">i", records, end + 8)[0]
        if end + size > len(records):
            break
        end += size
    return records[:end]


def next_offset(records: list[bytes], offset: int) -> int:
    """Return the offset at which a consumer reads on."""
    position, found = 0, records[0] if records else b""
    while position < len(found):
        base_offset, length, delta = struct.unpack_from(">qi11xi", found, position)
        offset = base_offset + delta + 1
        position += 12 + length
    return offset


Step = Produce | Fetch | Change


class Pair:
    """The same steps both ways."""

    def __init__(self, first: str, second: str) -> None:
        self.quick, self.general = Side(first, repeats=True), Side(second, repeats=False)
        self.patterns: set[type] = set()

    def take(self, steps: list[Step]) -> None:
        """Compare each answer."""
        for step in steps:
            offset = step.offset if isinstance(step, Fetch) else 0
            for _ in range(1 if isinstance(step, Change) else step.times):
                offset = self._take(step, offset)
            assert self.general.context.repeat is None
            self.patterns.add(type(self.quick.context.repeat))

    def _take(self, step: Step, offset: int) -> int:
        quick, general = self.quick, self.general
        if isinstance(step, Change):
            quick.change(step)
            general.change(step)
        elif isinstance(step, Produce):
            assert quick.produce(step) == general.produce(step)
        else:
            answer = quick.fetch(step, offset)
            assert answer == general.fetch(step, offset)
            return next_offset(answer[2], offset)
        return offset

    def both(self, change: Callable[[Side], object]) -> None:
        """Change both brokers or connections."""
        change(self.quick)
        change(self.general)


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    """Two brokers in directories of their own."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        both = Pair(first, second)
        try:
            yield both
            assert both.quick.state() == both.general.state()
        finally:
            both.both(Side.close)


@settings(deadline=None)
@given(STEPS)
def test_a_repeated_request_is_answered_as_any_other(steps: list[Step]) -> None:
    with pair() as both:
        both.take(steps)


PRODUCE = Produce(3, 13, 1, 1000, None, b"tester", (0,), RECORDS[0])
LARGE = PRODUCE._replace(times=8, records=RECORDS[2])
FETCH = Fetch(3, 18, 0, 1000, 100_000, 1, 0, 0, "none", -1, -1, (0,))
NEXT = FETCH._replace(session="next", times=1)
COMMITTED = FETCH._replace(isolation=1, times=6)
OPEN, COMMIT, ABORT = Change("open", {}), Change("commit", {}), Change("abort", {})
RECREATE = Change("recreate", {})


@pytest.mark.parametrize(
    "steps",
    [
        [step for configs in CONFIGS for step in (PRODUCE, Change("configs", configs), PRODUCE)],
        [PRODUCE, *(PRODUCE._replace(times=1, records=records) for records in RECORDS), PRODUCE],
        [PRODUCE, RECREATE, PRODUCE, FETCH, RECREATE, FETCH],
        [PRODUCE._replace(version=12), RECREATE, PRODUCE._replace(version=12)],
        [PRODUCE._replace(times=1), PRODUCE._replace(acks=2, times=6)],
        [PRODUCE._replace(times=1), PRODUCE._replace(transactional_id="", times=6)],
        [LARGE, FETCH, Change("log start", {}), FETCH, Change("truncate", {}), FETCH._replace(times=9)],
        [LARGE, FETCH._replace(leader_epoch=3, times=5), FETCH._replace(leader_epoch=0, times=5)],
        [LARGE, FETCH._replace(min_bytes=5000, max_wait_ms=100, times=5)],
        [LARGE, FETCH._replace(session="unknown", times=3), FETCH._replace(session="final", times=2)],
        [LARGE, Change("quotas", {}), LARGE, FETCH._replace(times=6)],
        [LARGE, FETCH._replace(times=4), Change("quotas", {}), FETCH, LARGE],
        [LARGE, FETCH._replace(times=4), Change("offline", {}), FETCH, LARGE],
        [LARGE, Change("offline", {}), LARGE],
        [LARGE, COMMITTED, OPEN, LARGE, COMMITTED, COMMIT, COMMITTED, FETCH._replace(times=6)],
        [LARGE, COMMITTED, OPEN, LARGE, COMMITTED, ABORT, COMMITTED, LARGE, COMMITTED._replace(offset=5)],
        [LARGE, OPEN, LARGE, ABORT, Change("roll", {}), LARGE, COMMITTED._replace(times=30), COMMITTED],
        [LARGE, COMMITTED, OPEN, ABORT, LARGE, COMMITTED._replace(times=20), Change("truncate", {}), COMMITTED],
        [LARGE, NEXT._replace(times=6), Change("sessions", {}), NEXT._replace(times=3)],
        [LARGE, NEXT._replace(session="create"), NEXT._replace(times=6), NEXT._replace(session="final"), NEXT],
    ],
)
def test_what_happens_between_equal_requests(steps: list[Step]) -> None:
    with pair() as both:
        both.take(steps)


def test_both_kinds_of_pattern_are_met() -> None:
    with pair() as both:
        both.take([LARGE, FETCH._replace(times=9), LARGE, COMMITTED._replace(times=9)])
        assert {RepeatedProduce, RepeatedFetch} <= both.patterns


@pytest.mark.parametrize("isolation", [0, 1])
def test_a_consumer_of_large_batches_reads_on_without_a_search(isolation: int) -> None:
    with pair() as both:
        both.take([LARGE, LARGE, FETCH._replace(isolation=isolation, times=8)])
        repeat = both.quick.context.repeat
        assert isinstance(repeat, RepeatedFetch)
        assert repeat._cursor._next is not None


def test_an_aborted_transaction_is_told_of() -> None:
    with pair() as both:
        both.take([LARGE, COMMITTED, OPEN, ABORT, LARGE])
        _, response, _ = both.quick.fetch(COMMITTED._replace(max_bytes=100_000), 0)
        aborted = response.responses[0].partitions[0].aborted_transactions
        assert [(each.producer_id, each.first_offset) for each in aborted or ()] == [(5, 8)]
        both.general.fetch(COMMITTED._replace(max_bytes=100_000), 0)


def test_an_unknown_session_is_not_answered_as_if_there_were_one() -> None:
    with pair() as both:
        both.take([LARGE, FETCH._replace(session="unknown", times=9)])
        both.both(lambda side: setattr(side, "session_id", 77))
        both.take([FETCH._replace(session="final")])


@pytest.mark.parametrize(
    "other", [NEXT._replace(max_bytes=200), NEXT._replace(leader_epoch=0), NEXT._replace(last_epoch=0)]
)
def test_a_session_follows_as_its_last_request_said(other: Fetch) -> None:
    with pair() as both:
        both.take([LARGE, NEXT._replace(session="create"), NEXT._replace(times=7), other, NEXT])
        assert both.quick.state() == both.general.state()
        both.take([NEXT._replace(partitions=())])
