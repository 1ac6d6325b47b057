"""Primitive values of Kafka's protocol, for the coders of :mod:`tidelog.protocol.schema` and code written by hand.

Integers are big endian. A compact length is an unsigned varint of length + 1, 0 meaning null. Everything that reads
checks against the end of its buffer before it allocates. It raises :class:`MalformedError`, or IndexError at
that end; the coders turn both into InvalidRequestError with the message, the field and the offset.

    UNSIGNED_VARINT   7 bits a byte, lowest first, high bit set on all but the last; at most 5 bytes (10 for varlong)
    VARINT, VARLONG   the same over the zigzag form (n << 1) ^ (n >> 31), with 63 in place of 31 for varlong
    UUID              16 bytes; here always `bytes` of length 16, as text Kafka's base64url without padding
"""

from __future__ import annotations

import os
from binascii import a2b_base64, b2a_base64
from struct import Struct
from typing import Protocol

from tidelog.protocol.transferable import TransferableRecords

Buffer = bytes | bytearray | memoryview
Part = bytes | bytearray | memoryview | TransferableRecords
RecordsValue = Part | list[Part]

ZERO_UUID = bytes(16)
ONE_UUID = bytes(15) + b"\x01"
METADATA_TOPIC_ID = ONE_UUID  # Kafka reserves it for __cluster_metadata

_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")  # by hand: the base64 module costs a millisecond of start-up
_FROM_URL_SAFE = bytes.maketrans(b"-_+/", b"+/!!")

MAX_STRING_BYTES = 0x7FFF  # a string's classic length is an int16, and Kafka limits compact ones to the same
MAX_ELEMENTS = 1 << 20  # of all arrays in one message: an element of 3 bytes on the wire takes 150 in memory
MAX_TAGGED_FIELDS = 1024  # in one struct; Kafka's widest has nine. So a frame full of two-byte tags is refused early

INT16 = Struct(">h")

# One-byte forms of 0..127: a length below 128 costs a tuple look-up instead of a call.
SMALL_VARINTS = tuple(bytes((value,)) for value in range(128))


class MalformedError(ValueError):
    """Bytes that are not a value of the expected type."""


class Random(Protocol):
    """Source of randomness for :func:`random_uuid`: :class:`SystemRandom` or ``random.Random``."""

    def getrandbits(self, k: int, /) -> int: ...


class SystemRandom:
    """The system's randomness. Importing ``random`` for it would take 0.2 MB of a broker's memory."""

    def getrandbits(self, k: int, /) -> int:
        """Draw a number of ``k`` bits."""
        return int.from_bytes(os.urandom((k + 7) // 8), "big") >> (-k % 8)


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read the unsigned 32-bit varint at ``position``; return it and the position after it. Raises MalformedError,
    IndexError.
    """
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return continue_unsigned_varint(buffer, position + 1, first)


def continue_unsigned_varint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a varint whose ``first`` byte (high bit set) was read already. Raises MalformedError,
    IndexError.
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise MalformedError("a varint of more than 32 bits")
            return value, position
    raise MalformedError("a varint of more than 5 bytes")


def read_unsigned_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read the unsigned 64-bit varint at ``position``; return it and the position after it. Raises MalformedError,
    IndexError.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFFFFFFFFFF:
                raise MalformedError("a varlong of more than 64 bits")
            return value, position
    raise MalformedError("a varlong of more than 10 bytes")


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read the zigzag 32-bit varint at ``position``; return it and the position after it. Raises MalformedError,
    IndexError.
    """
    value, position = read_unsigned_varint(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read the zigzag 64-bit varint at ``position``; return it and the position after it. Raises MalformedError,
    IndexError.
    """
    value, position = read_unsigned_varlong(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def unsigned_varint(value: int) -> bytes:
    """Encode ``value`` (not negative) as an unsigned varint."""
    if value < 0x80:
        return SMALL_VARINTS[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def records_size(records: RecordsValue) -> int:
    """Count the bytes of a records field, in memory or in slices of files."""
    if isinstance(records, list):
        return sum(map(len, records))
    return len(records)


def uuid_to_str(uuid: Buffer) -> str:
    """Format a UUID as Kafka's text: 22 characters of base64url."""
    return b2a_base64(uuid, newline=False).rstrip(b"=").translate(_TO_URL_SAFE).decode("ascii")


def uuid_from_str(text: str) -> bytes:
    """Parse the 16 bytes of a UUID from Kafka's text form. Raises ValueError."""
    digits = text.removesuffix("==").encode("ascii", "replace")
    try:
        uuid = a2b_base64(digits.translate(_FROM_URL_SAFE) + b"==", strict_mode=True)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a UUID in base64url") from error
    if len(uuid) != 16:
        raise ValueError(f"{text!r} has {len(uuid)} bytes, a UUID has 16")
    return uuid


def random_uuid(random: Random) -> bytes:
    """Draw a random (version 4) UUID that is neither reserved nor starts with a dash in text, as Kafka's own."""
    while True:
        bits = random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | 0x4 << 76 | 0x2 << 62
        uuid = bits.to_bytes(16, "big")
        if uuid not in (ZERO_UUID, ONE_UUID) and not uuid_to_str(uuid).startswith("-"):
            return uuid


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """Return the position after a section of tagged fields, none of which is known. Raises MalformedError,
    IndexError.
    """
    count, position = read_unsigned_varint(buffer, position)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedError(f"more than {MAX_TAGGED_FIELDS} tagged fields")
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise MalformedError("a tagged field longer than the message")
    return position
