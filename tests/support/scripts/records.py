"""Scripts about records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.questions import Broker
from tests.support.scripts.registry import TIMESTAMP, batch, create, script, topic_id, write

FIRST_PRODUCE_VERSION = 3
"""Kafka 4 lists lower versions in ApiVersions, because librdkafka needs them there, but closes connections on use."""
UNKNOWN_ID = b"\x09" * 16


@script("produce")
def produce(broker: Broker, version: int) -> None:
    if version < FIRST_PRODUCE_VERSION:
        return
    name = f"pr{version}"
    create(broker, name, 2)
    create(broker, f"{name}-compact", cleanup_policy="compact")
    create(broker, f"{name}-small", max_message_bytes="200")
    create(broker, f"{name}-stamped", message_timestamp_type="LogAppendTime")
    known = {topic: topic_id(broker, topic) for topic in (name, f"{name}-compact", f"{name}-small", f"{name}-stamped")}

    def send(topic: str, records: memoryview | None, partition: int = 0, acks: int = -1) -> None:
        by_id = known.get(topic, UNKNOWN_ID)
        data = [{"name": topic, "topic_id": by_id, "partition_data": [{"index": partition, "records": records}]}]
        broker.ask("produce", version, acks=acks, timeout_ms=5_000, topic_data=data)

    send(name, batch(b"a", b"b"))
    send(name, batch(b"c"), partition=1, acks=1)
    send(f"{name}-none", batch(b"a"))
    send(name, batch(b"a"), partition=2)
    send(name, batch(b"a"), partition=-1)
    for acks in (2, -2):
        send(name, batch(b"a"), acks=acks)
    send(name, memoryview(bytes(batch(b"a"))[:-1]))
    send(name, memoryview(bytes(batch(b"a"))[:40]))
    for damaged in damaged_batches():
        send(name, damaged)
    send(name, memoryview(bytes(batch(b"a")) + bytes(batch(b"b"))))
    send(f"{name}-compact", batch(b"a"))
    send(f"{name}-compact", batch(b"a", key=b"k"))
    send(f"{name}-small", batch(b"x" * 500))
    send(f"{name}-stamped", batch(b"a"))
    for sequence, epoch in ((0, 0), (0, 0), (1, 0), (5, 0), (1, 0), (0, 1), (2, 0), (7, 1)):
        send(name, batch(b"i", producer_id=990_000 + version, producer_epoch=epoch, base_sequence=sequence))
    send(name, batch(b"i", producer_id=980_000 + version, producer_epoch=0, base_sequence=3))
    send(name, batch(b"i", producer_id=970_000, producer_epoch=0, base_sequence=0, is_control=True))
    broker.ask("produce", version, acks=-1, timeout_ms=5_000, topic_data=[])
    twice = [{"index": 0, "records": batch(b"1")}, {"index": 1, "records": batch(b"2")}]
    data = [{"name": name, "topic_id": known[name], "partition_data": twice}]
    broker.ask("produce", version, acks=-1, timeout_ms=5_000, topic_data=data)
    broker.ask("produce", version, acks=-1, timeout_ms=5_000, transactional_id="unknown", topic_data=data)
    inside = batch(b"t", producer_id=960_000, producer_epoch=0, base_sequence=0, is_transactional=True)
    data = [{"name": name, "topic_id": known[name], "partition_data": [{"index": 0, "records": inside}]}]
    broker.ask("produce", version, acks=-1, timeout_ms=5_000, transactional_id=f"{name}-unknown", topic_data=data)
    broker.ask("list_offsets", 5, topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}])


def damaged_batches() -> Iterator[memoryview]:
    """Yield a batch of one record three times: with a flipped bit, with a record count of five, with magic 3."""
    flipped = bytearray(batch(b"a"))
    flipped[-1] ^= 1
    yield memoryview(flipped)
    counted = bytearray(batch(b"a"))
    counted[57:61] = (5).to_bytes(4, "big")
    yield memoryview(counted)
    of_future = bytearray(batch(b"a"))
    of_future[16] = 3
    yield memoryview(of_future)


@script("fetch")
def fetch(broker: Broker, version: int) -> None:
    name = f"fe{version}"
    create(broker, name, 2)
    for number in range(4):
        write(broker, name, b"a%d" % number, b"b%d" % number)
    known = topic_id(broker, name)

    def ask(topic: str = name, by_id: bytes = known, *, session: tuple[int, int] = (0, -1), **of: object) -> None:
        levels: dict[str, object] = {
            key: of.pop(key) for key in ("isolation_level", "max_bytes", "min_bytes") if key in of
        }
        partition: dict[str, object] = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, **of}
        topics = [{"topic": topic, "topic_id": by_id, "partitions": [partition]}]
        rest: dict[str, object] = {"max_bytes": 1 << 20, "min_bytes": 0, "replica_id": -1, **levels}
        broker.ask("fetch", version, topics=topics, session_id=session[0], session_epoch=session[1], **rest)

    ask()
    ask(partition=1)
    for offset in (3, 8, 9, 1000, -1):
        ask(fetch_offset=offset)
    ask(partition=2)
    ask(partition=-1)
    ask(f"{name}-none", UNKNOWN_ID)
    ask(by_id=bytes(16))
    ask(partition_max_bytes=1)
    ask(partition_max_bytes=0)
    ask(max_bytes=1)
    ask(isolation_level=1)
    ask(min_bytes=-1)
    for epoch in (0, 1, -2):
        ask(current_leader_epoch=epoch)
    ask(last_fetched_epoch=0)
    for session in ((12345, 1), (12345, -1), (0, 1), (0, 0), (12345, 0)):
        ask(session=session)
    broker.ask("fetch", version, topics=[], replica_id=-1, max_bytes=100, min_bytes=0, session_epoch=-1)
    if version >= 7:
        _session(broker, version, name, known)


def _session(broker: Broker, version: int, name: str, known: bytes) -> None:
    """Send the fetches of one session: with new records, forgotten partitions, a wrong epoch, and after its end."""
    partitions = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in (0, 1, 2)]
    topics = [{"topic": name, "topic_id": known, "partitions": partitions}]
    common = {"replica_id": -1, "max_bytes": 1 << 20, "min_bytes": 0}
    first = broker.ask("fetch", version, topics=topics, session_id=0, session_epoch=0, **common)
    session = first.session_id
    broker.ask("fetch", version, topics=[], session_id=session, session_epoch=1, **common)
    write(broker, name, b"more", partition=1)
    broker.ask("fetch", version, topics=[], session_id=session, session_epoch=2, **common)
    gone = [{"topic": name, "topic_id": known, "partitions": [0, 2]}]
    broker.ask("fetch", version, topics=[], session_id=session, session_epoch=3, forgotten_topics_data=gone, **common)
    broker.ask("fetch", version, topics=[], session_id=session, session_epoch=7, **common)
    broker.ask("fetch", version, topics=topics, session_id=session, session_epoch=-1, **common)
    broker.ask("fetch", version, topics=[], session_id=session, session_epoch=4, **common)


@script("list_offsets")
def list_offsets(broker: Broker, version: int) -> None:
    name = f"lo{version}"
    create(broker, name, 2)
    for _ in range(3):
        write(broker, name, b"a", b"b")
    for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, TIMESTAMP, TIMESTAMP + 1, TIMESTAMP + 5, 2**62):
        for partition in (0, 1):
            _offset(broker, version, name, partition, timestamp)
    for partition in (2, -1):
        _offset(broker, version, name, partition, -1)
    _offset(broker, version, f"{name}-none", 0, -1)
    for epoch in (0, 1, -2):
        _offset(broker, version, name, 0, -1, epoch)
    for level in (0, 1):
        asked = [{"partition_index": 0, "timestamp": -1}]
        broker.ask(
            "list_offsets", version, isolation_level=level, topics=[{"name": name, "partitions": asked}], replica_id=-1
        )
    twice = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
    broker.ask("list_offsets", version, topics=[{"name": name, "partitions": twice}], replica_id=-1)
    broker.ask("list_offsets", version, topics=[], replica_id=-1)


def _offset(broker: Broker, version: int, name: str, partition: int, timestamp: int, epoch: int = -1) -> None:
    """Send ListOffsets about one partition."""
    asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
    broker.ask("list_offsets", version, topics=[{"name": name, "partitions": [asked]}], replica_id=-1)


@script("offset_for_leader_epoch")
def offset_for_leader_epoch(broker: Broker, version: int) -> None:
    name = f"ol{version}"
    create(broker, name)
    for _ in range(2):
        for topic, partition, current, epoch in (
            (name, 0, -1, 0),
            (name, 0, 0, 0),
            (name, 0, 0, -1),
            (name, 0, 5, 0),
            (name, 0, -1, 3),
            (name, 1, -1, 0),
            (f"{name}-none", 0, -1, 0),
        ):
            asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
            topics = [{"topic": topic, "partitions": [asked]}]
            broker.ask("offset_for_leader_epoch", version, replica_id=-1, topics=topics)
        write(broker, name, b"a", b"b")


@script("delete_records")
def delete_records(broker: Broker, version: int) -> None:
    name = f"dr{version}"
    create(broker, name)
    create(broker, f"{name}-compact", cleanup_policy="compact")
    write(broker, name, b"a", b"b", b"c")

    def delete(topic: str, partition: int, offset: int) -> None:
        asked = [{"partition_index": partition, "offset": offset}]
        broker.ask("delete_records", version, topics=[{"name": topic, "partitions": asked}], timeout_ms=5_000)

    for offset in (1, 0, 4, -2, 2, -1, -1):
        delete(name, 0, offset)
    delete(name, 1, 0)
    delete(f"{name}-none", 0, 0)
    delete(f"{name}-compact", 0, 0)
    delete("__consumer_offsets", 0, 0)
    broker.ask("delete_records", version, topics=[], timeout_ms=5_000)
    _offset(broker, 5, name, 0, -2)
