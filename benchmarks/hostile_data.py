"""Produce and Fetch requests that cause far more work than their size suggests, for ``benchmarks.bystander`` and tests.

One client sends each request while a bystander produces every 10 ms. A row has the configs of the topic it needs, the
requests that prepare the topic, and the request itself, as frames with their lengths.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

import cramjam
import lz4.frame
import zstandard

from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.compression import XERIAL_HEADER, CompressionType, compress
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.message_writer import MessageWriter
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, BatchOptions, Record, append_record, build_batch, set_crc

PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, OLD_PRODUCE_VERSION, OLD_FETCH_VERSION = 7, 2, 2
PARTITIONS = 16
MEBIBYTE = 1 << 20
TIMESTAMP_MS = 1_700_000_000_000
DELTA_AT = 3
"""Where a small record has its offset delta: after its length, its attributes and its timestamp delta."""
GZIP, SNAPPY, LZ4, ZSTD = CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD


class HostileRequest(NamedTuple):
    """One row. ``prepare`` and ``frame`` make frames for a topic of PARTITIONS partitions with these ``configs``."""

    name: str
    frame: Callable[[str], bytes]
    configs: Mapping[str, str] = {}
    prepare: Callable[[str], list[bytes]] = lambda _topic: []


def encode_frame(api_key: int, version: int, body: bytes) -> bytes:
    """Encode a request of the client ``raw``, length in front."""
    header = struct.pack(">hhih", api_key, version, 1, 3) + b"raw"
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce(topic: str, *parts: tuple[int, bytes | bytearray], version: int = PRODUCE_VERSION) -> bytes:
    """Build a Produce with acks=1 of these records to these partitions."""
    data = [PartitionProduceData(index=index, records=memoryview(records)) for index, records in parts]
    request = ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    return encode_frame(PRODUCE, version, request.encode(version))


def fetch(topic: str, version: int, partition: int = 0) -> bytes:
    """Build a Fetch of a partition from its beginning."""
    asked = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=MEBIBYTE)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=MEBIBYTE, topics=[FetchTopic(topic=topic, partitions=[asked])]
    )
    return encode_frame(FETCH, version, request.encode(version))


# --- records ---------------------------------------------------------------------------------------------------------


def batch_around(section: bytes, codec: int, count: int = 1) -> bytearray:
    """Build a batch with a good header and checksum whose compressed records section is ``section``."""
    made = build_batch([Record(0, TIMESTAMP_MS, b"k", b"v")])[:61] + section
    struct.pack_into(">i", made, 8, len(made) - LOG_OVERHEAD)
    struct.pack_into(">h", made, 21, codec)
    struct.pack_into(">i", made, 23, count - 1)
    struct.pack_into(">i", made, 57, count)
    set_crc(made, 0, len(made))
    return made


def empty_parts(codec: CompressionType) -> bytes:
    """Build a megabyte of gzip members, lz4 frames or snappy chunks that hold nothing."""
    part = {
        GZIP: lambda: gzip.compress(b"", 1),
        LZ4: lambda: bytes(lz4.frame.compress(b"")),
        SNAPPY: lambda: struct.pack(">i", 1) + bytes(cramjam.snappy.compress_raw(b"")),
    }[codec]()
    start = XERIAL_HEADER if codec is SNAPPY else b""
    return start + part * ((1_000_000 - len(start)) // len(part))


def small_records(count: int) -> bytes:
    """Build a section of ``count`` records of one byte, with offset deltas from 0.

    Up to 64 records in a row differ in one byte only, the lowest seven bits of a delta that is written doubled.
    """
    section = bytearray()
    for first in range(0, count, 64):
        one = bytearray()
        append_record(one, Record(first, 0, None, b"v"), 0, 0)
        alike = min(64, count - first)
        records = one * alike
        records[DELTA_AT :: len(one)] = bytes(range(one[DELTA_AT], one[DELTA_AT] + 2 * alike, 2))
        section += records
    return bytes(section)


def lying_batch(count: int) -> bytearray:
    """Build records whose offset deltas are all 0: the broker has to renumber them one by one."""
    one = small_records(1)
    return batch_around(zstandard.ZstdCompressor().compress(one * count), ZSTD, count)


def many_headers() -> bytearray:
    """Build one record of nearly a megabyte of headers, each of two bytes."""
    return build_batch([Record(0, TIMESTAMP_MS, None, b"v", [("", None)] * 480_000)])


def old_set(count: int, magic: int, codec: int = 0) -> bytes:
    """Build ``count`` messages of one byte each; with a codec, one wrapper message that holds them."""
    one = build_message_set([Record(0, TIMESTAMP_MS, None, b"v")], MessageSetOptions(magic))
    if not codec:
        return one * count
    writer = MessageWriter(65536)
    with writer.entry(count - 1), writer.message(magic, codec, TIMESTAMP_MS, None):
        writer.write_nullable(compress(one * count, codec, magic=magic))
    return writer.to_bytes()


def zeros(size: int, codec: int) -> bytearray:
    """Build a batch of one record that compresses well."""
    return build_batch([Record(0, TIMESTAMP_MS, None, bytes(size))], BatchOptions(compression=codec))


def digits(size: int) -> bytearray:
    """Build records that compress well but take long to recompress."""
    text = b"".join(b"%d," % (number * number % 100_003) for number in range(100_003))
    text = text * (size // len(text) + 1)
    records = [Record(0, TIMESTAMP_MS, None, text[: size // 2]), Record(1, TIMESTAMP_MS, None, text[size // 2 : size])]
    return build_batch(records, BatchOptions(compression=GZIP, level=1))


def packed_records(count: int) -> bytearray:
    """Build a gzip batch of ``count`` one-byte records."""
    section = small_records(count)
    return batch_around(compress_gzip(section), GZIP, count)


def compress_gzip(section: bytes) -> bytes:
    return gzip.compress(section, 6)


def _parts(codec: CompressionType) -> Callable[[str], bytes]:
    return lambda topic: produce(topic, (0, batch_around(empty_parts(codec), codec)))


LARGE = {"max.message.bytes": str(16 * MEBIBYTE)}
ROWS = [
    HostileRequest("produce: gzip of empty members, 1 MB", _parts(GZIP)),
    HostileRequest("produce: lz4 of empty frames, 1 MB", _parts(LZ4)),
    HostileRequest("produce: snappy of empty chunks, 1 MB", _parts(SNAPPY)),
    HostileRequest(
        "produce: old set of 30,000 small messages",
        lambda topic: produce(topic, (0, old_set(30_000, 1)), version=OLD_PRODUCE_VERSION),
    ),
    HostileRequest(
        "produce: 10 old wrappers of 120,000",
        lambda topic: produce(topic, *enumerate([old_set(120_000, 1, GZIP)] * 10), version=OLD_PRODUCE_VERSION),
    ),
    HostileRequest("produce: 2 M records with wrong offset deltas", lambda t: produce(t, (0, lying_batch(2_000_000)))),
    HostileRequest("produce: 30,000 records with wrong offset deltas", lambda t: produce(t, (0, lying_batch(30_000)))),
    HostileRequest("produce: a record of 480,000 headers", lambda topic: produce(topic, (0, many_headers()))),
    HostileRequest(
        "produce: the same partition 1,000 times, 15 MB of gzip each",
        lambda topic: produce(topic, *[(0, zeros(15 * MEBIBYTE, GZIP))] * 1000),
    ),
    HostileRequest(
        "produce: 16 partitions, 15 MB of gzip each",
        lambda topic: produce(topic, *enumerate([zeros(15 * MEBIBYTE, GZIP)] * PARTITIONS)),
    ),
    HostileRequest(
        "produce: 19,000 batches for partitions, most unknown",
        lambda topic: produce(topic, *enumerate([build_batch([Record(0, 0, None, b"v")])] * 19_000)),
    ),
    HostileRequest(
        "produce: 15 MB recompressed by zstd 22",
        lambda topic: produce(topic, (0, digits(15 * MEBIBYTE))),
        {**LARGE, "compression.type": "zstd", "compression.zstd.level": "22"},
    ),
    HostileRequest(
        "fetch v2: 700,000 records of one batch",
        lambda topic: fetch(topic, OLD_FETCH_VERSION),
        prepare=lambda topic: [produce(topic, (0, packed_records(700_000)))],
    ),
]
