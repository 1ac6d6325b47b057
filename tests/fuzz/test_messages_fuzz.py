"""Random bytes give a message or InvalidRequestError, and never take more memory than a small multiple of their size.

Deterministic: the seeds are the test's parameters, so a failure repeats. The number of inputs is bounded.
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc

import pytest

from tests.support.messages import RandomChoices, all_versions, arbitrary
from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION
from tidelog.protocol.errors import InvalidReceiveError, InvalidRequestError
from tidelog.protocol.frames import FrameReader
from tidelog.protocol.header import RequestHeader, decode_request_header, encode_request_header
from tidelog.protocol.schema.fields import Message

ROUNDS = 12  # inputs for each message and version, and seed
VERSIONS = all_versions()

# Numbers that lengths, counts and varints go wrong with.
EDGES = [bytes.fromhex(text) for text in ("ffffffff", "7fffffff", "fffffffe", "80000000", "8000", "7fff", "ffffffff0f")]
EDGES += [b"\xff" * 9, b"\x80" * 6, b"\0", b"\xff", b"\x7f", b"\x80", b"\xc0\x80", b"\0" * 16]


def damaged(data: bytes, source: random.Random) -> bytearray:
    """Change some bytes of ``data``, remove or repeat them, or put a number from the edges there."""
    result = bytearray(data)
    for _ in range(source.randint(1, 4)):
        start = source.randint(0, len(result))
        end = min(len(result), start + source.randint(0, 8))
        kind = source.randrange(4)
        if kind == 0 and result:
            result[start % len(result)] ^= 1 << source.randrange(8)
        elif kind == 1:
            edge = source.choice(EDGES)
            result[start : start + len(edge)] = edge
        elif kind == 2:
            del result[start:end]
        else:
            result[start:start] = result[start:end] * source.randint(1, 5)
    return result


def decode_or_refuse(cls: type[Message], version: int, data: bytes | bytearray) -> bool:
    """Return whether ``data`` is a ``cls``; the only exception that passes for "no" is InvalidRequestError."""
    try:
        message = cls.decode(memoryview(data), version)
    except InvalidRequestError as error:
        words = str(error)
    else:
        message.encode(version)
        return True
    assert words.startswith(f"{cls.__name__} v{version}: ")
    return False


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_messages_are_decoded_or_refused(seed: int) -> None:
    source = random.Random(seed)
    accepted = 0
    for cls, version in VERSIONS:
        for _ in range(ROUNDS):
            data = arbitrary(cls, version, RandomChoices(source.getrandbits(32))).encode(version)
            accepted += decode_or_refuse(cls, version, damaged(data, source))
    assert 0 < accepted < len(VERSIONS) * ROUNDS


def test_random_bytes_are_decoded_or_refused() -> None:
    source = random.Random(3)
    for cls, version in VERSIONS:
        for _ in range(ROUNDS):
            decode_or_refuse(cls, version, source.randbytes(source.randint(0, 200)))
        decode_or_refuse(cls, version, b"\xff" * 100)
        decode_or_refuse(cls, version, b"\0" * 100)
        decode_or_refuse(cls, version, b"\x80" * 100)


def test_claimed_lengths_allocate_nothing() -> None:
    """Each message is cut off after every prefix and goes on with the largest lengths there are."""
    tracemalloc.start()
    try:
        for cls, version in VERSIONS:
            data = arbitrary(cls, version, RandomChoices(4)).encode(version)
            decode_or_refuse(cls, version, data)  # both make their decoders, which is not what is measured
            decode_or_refuse(cls, version, data[:-1])
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for end in range(0, min(len(data), 120), 3):
                decode_or_refuse(cls, version, data[:end] + b"\x7f\xff\xff\xff")
                decode_or_refuse(cls, version, data[:end] + b"\xff\xff\xff\xff\x0f")
            assert tracemalloc.get_traced_memory()[1] - before < 200_000, f"{cls.__name__} v{version}"
    finally:
        tracemalloc.stop()


def test_refusals_leave_nothing_behind() -> None:
    """10^5 damaged messages; each refusal goes through a traceback, which must not stay alive."""
    source = random.Random(8)
    samples = [
        (cls, version, arbitrary(cls, version, RandomChoices(9)).encode(version)) for cls, version in VERSIONS[::20]
    ]

    def refuse(turns: int) -> None:
        for turn in range(turns):
            cls, version, data = samples[turn % len(samples)]
            decode_or_refuse(cls, version, damaged(data[:200], source))

    for cls, version, data in samples:
        decode_or_refuse(cls, version, data)
    refuse(1_000)  # what is made for the first refusal of a message stays
    gc.collect()
    before = sys.getallocatedblocks()
    refuse(100_000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


def test_any_request_header_is_read_or_refused() -> None:
    """Random bytes are no header, so the bytes of good ones are changed."""
    source = random.Random(5)
    read = refused = 0
    for _ in range(5_000):
        client_id = source.choice([None, "", "client"])
        header = RequestHeader(source.randrange(len(FIRST_FLEXIBLE_VERSION)), source.randrange(20), 1, client_id)
        data = damaged(encode_request_header(header) + source.randbytes(source.randint(0, 10)), source)
        try:
            header, position = decode_request_header(memoryview(data))
        except InvalidRequestError:
            refused += 1
            continue
        read += 1
        assert header.api_key >= 0
        assert header.api_version >= 0
        assert 8 <= position <= len(data)
    assert read > 500
    assert refused > 500


def test_streams_of_noise_give_frames_or_an_error() -> None:
    source = random.Random(6)
    for _ in range(300):
        reader = FrameReader(1 << 20)
        try:
            for _ in range(20):
                length = source.choice([0, 3, 50, 5_000, 1 << 20, source.getrandbits(32)])
                reader.receive_data(length.to_bytes(4, "big") + source.randbytes(source.randint(0, 6_000)))
                while (frame := reader.next_frame()) is not None:
                    assert len(frame) <= 1 << 20
        except InvalidReceiveError:
            continue
        assert reader.capacity_bytes < 1 << 20
