"""An encoder and decoder that interprets messages' declarations, field by field: the oracle of the compiled coders.

Slow, short, and written from Kafka's description of the format alone; it shares no code with the compilers.
"""

from __future__ import annotations

import struct
from typing import Any

from tidelog.protocol.schema.fields import Field, Message, Struct
from tidelog.protocol.transferable import TransferableRecords

_FORMATS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
    "bool": ">?",
    "uuid": ">16s",
}


class DecodeError(Exception):
    """The bytes are not a message of this type and version."""


def decode(cls: type[Message], data: bytes, version: int) -> Message:
    """Decode the message that fills ``data``. Raises DecodeError."""
    reader = _Reader(data, version, cls.FLEXIBLE.has(version))
    message: Message = reader.struct(cls)
    if reader.position != len(data):
        raise DecodeError("bytes left over")
    return message


def encode(message: Message, version: int) -> bytes:
    """Encode ``message`` without record slices that are in files."""
    return _encode_struct(message, version, type(message).FLEXIBLE.has(version))


class _Reader:
    def __init__(self, data: bytes, version: int, flexible: bool) -> None:
        self.data = data
        self.position = 0
        self.version = version
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self.data):
            raise DecodeError("short")
        self.position += size
        return self.data[self.position - size : self.position]

    def fixed(self, kind: str) -> Any:
        layout = _FORMATS[kind]
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 32:
                    raise DecodeError("varint")
                return value
        raise DecodeError("varint")

    def length(self, kind: str, nullable: bool) -> int | None:
        size = self.unsigned_varint() - 1 if self.flexible else self.fixed("int16" if kind == "string" else "int32")
        if size < -1 or (size == -1 and not nullable) or (kind == "string" and size > 0x7FFF):
            raise DecodeError("length")
        return None if size == -1 else size

    def struct(self, cls: type[Struct]) -> Any:
        value: Any = cls()
        tags = {}
        for field in cls.FIELDS:
            if not field.versions.has(self.version):
                continue
            if self.flexible and field.tag is not None:
                tags[field.tag] = field
            else:
                setattr(value, field.name, self.field(field))
        if self.flexible:
            self.tagged_fields(value, tags)
        return value

    def tagged_fields(self, value: Any, tags: dict[int, Field]) -> None:
        count = self.unsigned_varint()
        if count > 1024:
            raise DecodeError("tagged fields")
        for _ in range(count):
            tag, size = self.unsigned_varint(), self.unsigned_varint()
            if size > len(self.data) - self.position:
                raise DecodeError("short")
            end = self.position + size
            if tag in tags:
                setattr(value, tags[tag].name, self.field(tags[tag]))
                if self.position != end:
                    raise DecodeError("size of a tagged field")
            self.position = end

    def field(self, field: Field) -> Any:
        if field.kind in _FORMATS:
            return self.fixed(field.kind)
        nullable = field.nullable.has(self.version)
        if field.kind == "struct":
            assert isinstance(field.item, type)
            if nullable and self.fixed("int8") < 0:
                return None
            return self.struct(field.item)
        size = self.length(field.kind, nullable)
        if size is None:
            return None
        if field.kind == "array":
            return self.array(field.item, size)
        data = self.take(size)
        if field.kind != "string":
            return data
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError("utf-8") from error

    def array(self, item: Field | type[Struct] | None, size: int) -> list[Any]:
        if isinstance(item, Field):
            return [self.field(item) for _ in range(size)]
        return [self.struct(item or Struct) for _ in range(size)]


def _unsigned_varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _encode_struct(value: Any, version: int, flexible: bool) -> bytes:
    encoded = b""
    tagged = {}
    for field in value.FIELDS:
        if not field.versions.has(version):
            continue
        field_value = getattr(value, field.name)
        if not (flexible and field.tag is not None):
            encoded += _encode_field(field, field_value, version, flexible)
        elif field_value != _default(field):
            tagged[field.tag] = _encode_field(field, field_value, version, flexible)
    if flexible:
        encoded += _unsigned_varint(len(tagged))
        for tag in sorted(tagged):
            encoded += _unsigned_varint(tag) + _unsigned_varint(len(tagged[tag])) + tagged[tag]
    return encoded


def _default(field: Field) -> Any:
    if field.default == () and field.kind == "array":
        return []
    if field.default == () and field.kind == "struct":
        assert isinstance(field.item, type)
        return field.item()
    return field.default


def _encode_field(field: Field, value: Any, version: int, flexible: bool) -> bytes:
    if field.kind in _FORMATS:
        return struct.pack(_FORMATS[field.kind], value)
    if field.kind == "struct":
        if not field.nullable.has(version):
            return _encode_struct(value, version, flexible)
        return b"\xff" if value is None else b"\x01" + _encode_struct(value, version, flexible)
    size = -1 if value is None else len(value)
    if field.kind == "array":
        body = b"".join(_encode_item(field.item, item, version, flexible) for item in value or [])
    elif field.kind == "records":
        pieces = value if isinstance(value, list) else [value or b""]
        body = b"".join(piece for piece in pieces if not isinstance(piece, TransferableRecords))
        size = -1 if value is None else sum(map(len, pieces))
    else:
        body = value.encode() if isinstance(value, str) else bytes(value or b"")
        size = -1 if value is None else len(body)
    if flexible:
        return _unsigned_varint(size + 1) + body
    return struct.pack(">h" if field.kind == "string" else ">i", size) + body


def _encode_item(item: Field | type[Struct] | None, value: Any, version: int, flexible: bool) -> bytes:
    if isinstance(item, Field):
        return _encode_field(item, value, version, flexible)
    return _encode_struct(value, version, flexible)
