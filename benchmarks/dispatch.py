"""CPU of one produce or fetch request in the dispatcher, in process: ``python -m benchmarks.dispatch [DIRECTORY]``.

Appends write to files below DIRECTORY. Fetches answer with slices of 1 MiB of them, which are not sent. DIRECTORY must
not be on tmpfs, where a fetch cannot ask whether pages are in memory. Prints the lowest of ROUNDS measurements, in
microseconds of the thread's CPU time. No sockets are used.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.machine import require_compiled
from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker
from tidelog.broker.controller.topic_changes import NewTopic
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.transferable import release_slices

ROUNDS = 7
MANY = 12
PRODUCE_VERSION, FETCH_VERSION = 11, 12
LARGE_BATCHES, LARGE_RECORDS = 300, 990
MIB = 1 << 20


def batch(count: int, size: int, producer_id: int = -1, sequence: int = -1) -> bytes:
    """Build a batch of ``count`` records of ``size`` bytes."""
    options = BatchOptions(producer_id=producer_id, producer_epoch=min(producer_id, 0), base_sequence=sequence)
    return bytes(build_batch([Record(i, TIMESTAMP_MS, None, bytes(size)) for i in range(count)], options))


def produce(topic: str, records: bytes, partitions: int = 1) -> bytes:
    """Build a request with the same records for each partition."""
    data = [PartitionProduceData(index=index, records=memoryview(records)) for index in range(partitions)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    header = encode_request_header(RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 7, "bench"))
    return header + request.encode(PRODUCE_VERSION)


def fetch(topic: str, offset: int) -> bytes:
    """Build a request for a mebibyte from ``offset`` on."""
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, topics=[FetchTopic(topic=topic, partitions=[asked])]
    )
    header = encode_request_header(RequestHeader(ApiKey.FETCH, FETCH_VERSION, 7, "bench"))
    return header + request.encode(FETCH_VERSION)


def microseconds(dispatcher: Dispatcher, frames: Sequence[bytes]) -> float:
    """Measure the CPU of one request: the mean of these, on one new connection."""
    dispatch, context = dispatcher.dispatch, RequestContext()
    view = memoryview(bytearray(max(map(len, frames))))
    began = time.thread_time()
    for frame in frames:
        size = len(frame)
        view[:size] = frame
        answer = dispatch(context, view[:size])
        if isinstance(answer, list):
            release_slices(answer)
    return (time.thread_time() - began) / len(frames) * 1e6


def main(directory: str | None = None) -> None:
    """Measure and print."""
    require_compiled()
    with tempfile.TemporaryDirectory(dir=directory) as data_directory:
        data = DataBroker(Path(data_directory), {"log.segment.bytes": str(1 << 30)})
        for topic, partitions in (("one", 1), ("many", MANY), ("large", 1)):
            change = data.topics.changes.create(NewTopic(topic, partitions))
            while not change.done.done:  # later turns sync it and create its logs
                data.run_turn()
        large = batch(LARGE_RECORDS, 1000)
        for _ in range(LARGE_BATCHES):
            data.replica_manager.partition("large", 0).append_records(memoryview(bytearray(large)))
        single, page = produce("one", batch(1, 100)), produce("one", batch(146, 100))
        reads = [fetch("large", number * LARGE_RECORDS) for number in range(LARGE_BATCHES - 1)]
        rows: dict[str, Callable[[int], Sequence[bytes]]] = {
            "produce, one record": lambda _: [single] * 20_000,
            "produce, one record, producer id": lambda turn: [
                produce("one", batch(1, 100, 5, turn * 3000 + number)) for number in range(3000)
            ],
            f"produce, {MANY} partitions, producer id": lambda turn: [
                produce("many", batch(1, 100, 6, turn * 1000 + number), MANY) for number in range(1000)
            ],
            "produce, 16 KiB": lambda _: [page] * 3000,
            "fetch, 1 MiB": lambda _: reads,
        }
        dispatcher = Dispatcher(data.broker)
        for name, frames in rows.items():
            print(f"{name:36} {min(microseconds(dispatcher, frames(turn)) for turn in range(ROUNDS)):8.2f}")
        data.close()


if __name__ == "__main__":
    main(*sys.argv[1:2])
