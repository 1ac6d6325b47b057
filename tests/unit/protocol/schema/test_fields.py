"""Declarations of messages, with messages declared for these tests; ``test_coders`` compares the coders with their
oracle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.messages import RandomChoices, all_versions, arbitrary
from tests.support.no_file import NoFile
from tidelog.protocol import types
from tidelog.protocol.errors import InvalidRequestError, UnsupportedVersionError
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tidelog.protocol.schema.encoder import COPY_BELOW_BYTES
from tidelog.protocol.schema.fields import (
    EncodeError,
    Message,
    MessageTooLongError,
    Struct,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    nullable_struct,
    record_batches,
    source_of,
    string,
    struct_of,
    uint16,
    uint32,
    uuid,
    version_range,
)
from tidelog.protocol.transferable import TransferableRecords
from tidelog.protocol.types import ZERO_UUID, Buffer, RecordsValue, unsigned_varint

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[4]


class Point(Struct):
    x: int = int32(default=-1)
    y: int = int32("1+")


class Sample(Message, api_key=99, versions="0-3", flexible="2+"):
    name: str = string()
    note: str | None = string("1+", nullable="1+", default=None)
    count: int = int16()
    flags: list[int] = array(int8)
    points: list[Point] | None = array(Point, nullable="1+")
    ids: list[bytes] = array(uuid, "1+")
    origin: Point = struct_of(Point, "2+", tag=1)
    label: str = string("2+", default="none", tag=0)
    weights: list[int] | None = array(int32, "2+", nullable="2+", tag=2)
    center: Point | None = nullable_struct(Point, "3+", nullable="3+")
    data: Buffer = binary("3+")


class Scalars(Message, versions="0"):
    a: int = uint16(default=7)
    b: int = uint32()
    c: int = int64()
    d: float = float64()
    e: bool = boolean(default=True)
    f: bytes = uuid()
    g: list[str] = array(string)


class Carrier(Message, versions="0-1", flexible="1+"):
    head: int = int32()
    records: RecordsValue | None = record_batches(nullable="0+")
    tail: int = int32()


def test_fields_that_are_left_out_have_their_defaults() -> None:
    sample = Sample(name="a")
    assert (sample.name, sample.note, sample.count, sample.flags, sample.points) == ("a", None, 0, [], [])
    assert (sample.origin.x, sample.label, sample.center, sample.data) == (-1, "none", None, b"")
    scalars = Scalars()
    assert (scalars.a, scalars.b, scalars.d, scalars.e, scalars.f) == (7, 0, 0.0, True, ZERO_UUID)


def test_default_lists_are_not_shared() -> None:
    first, second = Sample(), Sample()
    first.flags.append(1)
    assert second.flags == []
    assert Sample(points=None).points is None


def test_default_struct_is_shared_and_refuses_changes() -> None:
    assert Sample().origin is Sample().origin
    with pytest.raises(AttributeError, match="assign a new Point"):
        Sample().origin.x = 5
    assert Sample().origin == Point()


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError):
        Sample(nam="a")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Sample().nam = "a"  # type: ignore[attr-defined]


def test_structs_compare_by_value_and_show_their_fields() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    assert Point(x=1) != Point(x=2)
    assert Point() != Scalars()
    assert Point() != 5
    assert repr(Point(x=1)) == "Point(x=1, y=0)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point())


def test_a_classic_version_has_its_bytes() -> None:
    sample = Sample(name="ab", note="n", count=-1, flags=[1, -1], points=[Point(x=1, y=2)], ids=[b"i" * 16])
    assert sample.encode(0).hex(" ") == "00 02 61 62 ff ff 00 00 00 02 01 ff 00 00 00 01 00 00 00 01"
    assert sample.encode(1).hex(" ").startswith("00 02 61 62 00 01 6e ff ff")
    decoded = Sample.decode(memoryview(sample.encode(0)), 0)
    assert decoded == Sample(name="ab", count=-1, flags=[1, -1], points=[Point(x=1)])


def test_a_flexible_version_has_its_bytes() -> None:
    sample = Sample(name="ab", points=None, origin=Point(x=1), weights=None)
    tags = "0201 09 00000001 00000000 0002 01 00"
    assert sample.encode(2) == bytes.fromhex("03 6162 00 0000 01 00 01" + tags)
    assert Sample.decode(sample.encode(2), 2) == sample


def test_nullable_struct_has_a_byte_in_front() -> None:
    prefix = bytes.fromhex("01 00 0000 01 01 01")
    assert Sample().encode(3) == prefix + bytes.fromhex("ff 01 00")
    assert Sample(center=Point(x=1)).encode(3) == prefix + bytes.fromhex("01 00000001 00000000 00 01 00")
    assert Sample.decode(Sample(center=Point()).encode(3), 3).center == Point()


def test_decode_from_continues_after_the_message() -> None:
    data = b"??" + Point_message().encode(0) + b"!!"
    assert Sample.decode_from(memoryview(data), 2, 0) == (Point_message(), len(data) - 2)
    with pytest.raises(InvalidRequestError):
        Sample.decode_from(memoryview(data), len(data) - 1, 0)


def Point_message() -> Sample:  # noqa: N802 - a message named for what it holds
    return Sample(name="p", points=[Point(x=4)])


def test_binary_fields_are_views_of_the_message() -> None:
    data = bytearray(Carrier(records=b"abc").encode(0))
    decoded = Carrier.decode(memoryview(data), 0)
    assert isinstance(decoded.records, memoryview)
    decoded.records[0] = 0x7A
    assert b"zbc" in data


def test_encode_parts_leaves_promises_and_large_buffers_as_they_are() -> None:
    promise = TransferableRecords(NoFile(), 0, 100)
    large = memoryview(bytes(COPY_BELOW_BYTES))
    size = 103 + len(large)
    parts = Carrier(head=1, records=[b"a", promise, large, b"bc"], tail=2).encode_parts(0)
    head, tail = b"\0\0\0\1", b"\0\0\0\2"
    assert parts == [head + size.to_bytes(4, "big") + b"a", promise, large, b"bc" + tail]
    assert Carrier(records=promise).encode_parts(1)[0] == bytes(4) + unsigned_varint(101)


def test_message_with_a_promise_has_no_bytes_yet() -> None:
    with pytest.raises(EncodeError, match="Carrier v0"):
        Carrier(records=TransferableRecords(NoFile(), 0, 100)).encode(0)


def test_unencodable_value_is_named() -> None:
    with pytest.raises(EncodeError, match="Sample v0: field count: "):
        Sample(count=1 << 20).encode(0)
    with pytest.raises(EncodeError, match=r"Sample v0: field points: .*NoneType"):
        Sample(points=None).encode(0)
    with pytest.raises(EncodeError, match=r"Sample v0: field points\.x: "):
        Sample(points=[Point(x=1 << 40)]).encode_parts(0)
    with pytest.raises(EncodeError, match="Sample v2: field name: a string too long"):
        Sample(name="x" * 40_000).encode(2)


@pytest.mark.parametrize("version", [-1, 4, 99])
def test_version_that_is_not_declared_is_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"Sample has versions 0-3, not {version}"):
        Sample.decode(b"", version)
    with pytest.raises(UnsupportedVersionError):
        Sample().encode(version)
    with pytest.raises(UnsupportedVersionError):
        source_of(Sample, version, "encode")


@pytest.mark.parametrize(
    ("version", "data", "words"),
    [
        (0, "", r"field name at byte 0: .*ends inside"),
        (0, "0005 6162", r"field name at byte 2: a length beyond"),
        (0, "ffff", r"field name at byte 2: a length below 0"),
        (0, "0002 c328 0000 00000000 00000000", r"field name at byte 2: .*UTF-8"),
        (0, "0000 00", r"field count at byte 2: .*ends inside"),
        (0, "0000 0000 fffffffe", r"field flags at byte 8: a length below 0"),
        (0, "0000 0000 7fffffff 00", r"field flags at byte 8: an array longer than the message"),
        (0, "0000 0000 00000000 00000002 00000001", r"field points at byte 12: an array longer"),
        (1, "0000 fffe", r"field note at byte 4: a length below -1"),
        (1, "0000 ffff 0000 00000000 fffffffe", r"field points at byte 14: a length below -1"),
        (1, "0000 ffff 0000 00000000 00000000 00000000 aa", "1 bytes left over at 18"),
        (2, "00", r"field name at byte 1: null"),
        (2, "ffffffffff", r"field name at byte 1: a varint of more than 5 bytes"),
        (2, "ffffffff1f", r"field name at byte 1: a varint of more than 32 bits"),
        (2, "ffffffff0f", r"field name at byte 5: a length beyond"),
        (2, "01 00 0000 ffffffff0f", r"field flags at byte 9: an array longer"),
        (2, "01 00 0000 01 01 01 01 00 05 01", r"tagged fields at byte 10: a tagged field longer"),
        (2, "01 00 0000 01 01 01 01 00 02 0161", r"field label at byte 11: a tagged field of another size"),
        (2, "01 00 0000 01 01 01 01 01 02 0000", r"field origin.x at byte 10: .*ends inside"),
        (2, "01 00 0000 01 01 01 8108", r"tagged fields at byte 9: more than 1024 tagged fields"),
        (3, "01 00 0000 01 01 01 01 0000", r"field center.x at byte 8: .*ends inside"),
    ],
)
def test_malformed_bytes_are_named_with_field_and_offset(version: int, data: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^Sample v{version}: .*{words}"):
        Sample.decode(memoryview(bytes.fromhex(data)), version)


def test_string_longer_than_an_int16_is_malformed() -> None:
    with pytest.raises(InvalidRequestError, match="longer than 32767 bytes"):
        Sample.decode(unsigned_varint(40_001) + b"x" * 50_000, 2)


def test_unknown_tagged_fields_are_skipped() -> None:
    data = bytes.fromhex("01 00 0000 01 01 01") + bytes.fromhex("0300 02 026107 03 aabbccc801 00")
    assert Sample.decode(data, 2) == Sample(label="a")


def test_a_million_tagged_fields_are_refused_at_once() -> None:
    data = bytes.fromhex("01 00 0000 01 01 01") + unsigned_varint(1_000_000) + b"\x07\x00" * 1_000_000
    with pytest.raises(InvalidRequestError, match="more than 1024 tagged fields"):
        Sample.decode(memoryview(data), 2)


def test_elements_of_all_arrays_are_limited_together() -> None:
    half = (types.MAX_ELEMENTS // 2 + 1).to_bytes(4, "big")
    flags = half + bytes(types.MAX_ELEMENTS // 2 + 1)
    with pytest.raises(InvalidRequestError, match=r"field points at byte .*: .* over the elements it may have"):
        Sample.decode(bytes(4) + flags + half + bytes(types.MAX_ELEMENTS * 2 + 4), 0)


def test_a_caller_may_allow_fewer_elements() -> None:
    data = Sample(points=[Point(x=1), Point(x=2)]).encode(0)
    assert Sample.decode_from(data, 0, 0, 2)[0].points == [Point(x=1), Point(x=2)]
    with pytest.raises(InvalidRequestError, match="over the elements it may have"):
        Sample.decode_from(data, 0, 0, 1)


def last_of(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Run steps; return their result and their number."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("seed", range(3))
def test_in_steps_every_message_is_read_and_written_as_without(seed: int) -> None:
    for number, (cls, version) in enumerate(all_versions()):
        message = arbitrary(cls, version, RandomChoices(seed << 16 | number))
        data = message.encode(version)
        assert last_of(cls.decode_in_steps(data, 0, version))[0] == cls.decode_from(data, 0, version)
        assert b"".join(last_of(message.encode_in_steps(version))[0]) == data


def test_long_arrays_are_read_and_written_in_many_steps() -> None:
    message = Sample(points=[Point(x=number % 100) for number in range(10_000)])
    for version in (0, 2):
        data = message.encode(version)
        (decoded, position), steps = last_of(Sample.decode_in_steps(data, 0, version))
        assert (decoded, position) == (message, len(data))
        assert steps >= 10_000 // 64
        parts, steps = last_of(message.encode_in_steps(version))
        assert b"".join(parts) == data  # type: ignore[arg-type]
        assert steps >= 10_000 // 64


def test_in_steps_a_message_that_is_too_long_is_given_up_early() -> None:
    message = Sample(points=[Point(x=1)] * 10_000)
    whole = len(message.encode(0))
    assert b"".join(last_of(message.encode_in_steps(0, whole))[0]) == message.encode(0)  # type: ignore[arg-type]
    steps: list[None] = []
    with pytest.raises(MessageTooLongError, match=f"longer than {whole // 4} bytes"):
        steps.extend(message.encode_in_steps(0, whole // 4))
    assert 10_000 // 64 // 5 < len(steps) < 10_000 // 64 // 3


@pytest.mark.parametrize("size", [100, COPY_BELOW_BYTES])
def test_in_steps_the_length_is_that_of_a_message_without_its_records(size: int) -> None:
    """Short records are joined with the bytes around them, long ones stay separate."""
    partitions = [PartitionData(partition_index=number, records=bytes(size)) for number in range(1000)]
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    surrounding = len(message.encode(12)) - 1000 * size
    assert b"".join(last_of(message.encode_in_steps(12, surrounding))[0]) == message.encode(12)  # type: ignore[arg-type]
    with pytest.raises(MessageTooLongError):
        last_of(message.encode_in_steps(12, surrounding * 9 // 10))


def test_in_steps_errors_are_as_without() -> None:
    data = Sample(points=[Point(x=1)] * 200).encode(0)
    for broken in (data[:-1], data[:300]):
        with pytest.raises(InvalidRequestError) as plain:
            Sample.decode_from(broken, 0, 0)
        with pytest.raises(InvalidRequestError) as stepped:
            last_of(Sample.decode_in_steps(broken, 0, 0))
        assert str(stepped.value) == str(plain.value)
    with pytest.raises(EncodeError):
        last_of(Sample(points=[Point(x=1 << 40)]).encode_in_steps(0))
    with pytest.raises(UnsupportedVersionError):
        last_of(Sample.decode_in_steps(data, 0, 99))


def test_record_value_carries_its_version() -> None:
    encoded = Sample(name="a").encode_prefixed(3)
    assert encoded[:2] == b"\0\3"
    assert Sample.decode_prefixed(encoded) == Sample(name="a")
    with pytest.raises(InvalidRequestError, match="left over"):
        Sample.decode_prefixed(encoded + b"x")
    with pytest.raises(InvalidRequestError, match="hold no version"):
        Sample.decode_prefixed(b"\0")
    with pytest.raises(UnsupportedVersionError):
        Sample.decode_prefixed(b"\0\x09")


def test_newer_subscription_is_read_as_the_newest_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a"], user_data=None, rack_id="r")
    newer = b"\0\x09" + subscription.encode(3) + b"more"
    assert ConsumerProtocolSubscription.decode_prefixed_lenient(newer) == subscription
    with pytest.raises(UnsupportedVersionError):
        ConsumerProtocolSubscription.decode_prefixed_lenient(b"\xff\xff")


@pytest.mark.parametrize("text", ["none", "0+", "3+", "3-5", "4"])
def test_version_ranges_are_written_as_read(text: str) -> None:
    assert str(version_range(text)) == text
    assert version_range(text) is version_range(text)


def test_source_is_straight_line_python() -> None:
    source = source_of(Sample, 0, "decode")
    assert source.startswith("def decode(b, p, k=1048576):\n")
    assert "version" not in source
    assert "note = None" in source
    assert "pack_h(o.count)" in source_of(Sample, 0, "encode")


def test_importing_messages_compiles_nothing() -> None:
    """Start-up pays for a message module's declarations only: no compiler, no coder, no constructor."""
    program = (
        "import sys, tidelog.protocol.messages.fetch as fetch\n"
        "assert not {'tidelog.protocol.schema.source', 'tidelog.protocol.schema.decoder', 'numpy'} & set(sys.modules)\n"
        "assert not fetch.FetchRequest._decoders and '__init__' not in vars(fetch.FetchRequest)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_field_shows_itself() -> None:
    assert repr(Sample.FIELDS[1]) == "Field(note: string 1+)"
