"""Coder of messages that walks their layouts: compiled, it decodes and encodes any message at any version.

A :class:`Layout` is a declaration at one version, built when the version is first used: the fields in their order on
the wire, each with its kind, its attribute's slot in the object, and the layout of its elements. One routine reads a
message by its layout, one writes it. If a message or its bytes are not as declared, the generated coder of the same
version (:mod:`tidelog.protocol.schema.decoder`, :mod:`tidelog.protocol.schema.encoder`) does the work again: it names
the field and the byte in its error. Without compiled modules the generated coders serve alone: walking a layout in
plain Python takes twice their time.

``walker.pxd`` declares the C types. Any thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tidelog.protocol.compiled import words
from tidelog.protocol.schema.decoder import compile_decoder
from tidelog.protocol.schema.encoder import COPY_BELOW_BYTES, compile_encoder
from tidelog.protocol.schema.fields import Field, Message, Struct
from tidelog.protocol.schema.source import CompiledCoder, add_frame, default_of, minimum_item_size, struct_fields
from tidelog.protocol.transferable import TransferableRecords
from tidelog.protocol.types import MAX_ELEMENTS, MAX_STRING_BYTES, MAX_TAGGED_FIELDS, Buffer, MalformedError, Part

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

T = TypeVar("T")

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_INT32, _INT64, _INT16, _INT8, _BOOL, _UINT16, _UINT32, _FLOAT64, _UUID = range(9)
_STRING, _BYTES, _RECORDS, _ARRAY, _STRUCT = range(9, 14)
_LAST_FIXED = _UUID
_KINDS = {
    "int32": _INT32, "int64": _INT64, "int16": _INT16, "int8": _INT8, "bool": _BOOL, "uint16": _UINT16,
    "uint32": _UINT32, "float64": _FLOAT64, "uuid": _UUID,
    "string": _STRING, "bytes": _BYTES, "records": _RECORDS, "array": _ARRAY, "struct": _STRUCT,
}  # fmt: skip
_SIZES = {_INT32: 4, _INT64: 8, _INT16: 2, _INT8: 1, _BOOL: 1, _UINT16: 2, _UINT32: 4, _FLOAT64: 8, _UUID: 16}
_UUID_BYTES = 16
_FIRST_BYTES = 512
"""Initial capacity of a writer."""
_LARGEST_SPARE = 65_536
"""A writer that grew beyond this capacity is not reused."""
_MAX_SPARES = 4
_COPY_BELOW = COPY_BELOW_BYTES
_LONGEST_STRING = MAX_STRING_BYTES
_MAX_TAGGED = MAX_TAGGED_FIELDS
_FLOAT = struct.Struct(">d")
_FRESH_LIST: Any = object()
"""Default of an array: each object gets a new list."""
_new_list: Any = list


class FieldLayout:
    """One field at a version: its kind, its attribute's slot in the object, and the layout of its elements."""

    __slots__ = (
        "default",
        "fields",
        "is_flexible",
        "is_nullable",
        "item",
        "kind",
        "size",
        "slot",
        "smallest_item",
        "tag",
    )

    def __init__(self, field: Field, version: int, flexible: bool, owner: type[Struct] | None) -> None:
        self.kind = _KINDS[field.kind]
        self.is_nullable = field.nullable.has(version)
        self.is_flexible = flexible
        self.size = _SIZES.get(self.kind, 0)
        self.tag = -1 if field.tag is None else field.tag
        self.slot = words.place_of(getattr(owner, field.name)) if owner is not None else words.NO_PLACE
        self.default = _default_of(field)
        self.smallest_item = 0
        """Fewest bytes of an array's element on the wire."""
        self.item: Any = None
        self.fields: Any = None
        """Layout of a struct, or of an array's elements if they are structs; ``item`` is the layout of other elements.
        At most one of the two is set."""
        if not field.versions.has(version):
            return
        if field.kind == "array":
            assert field.item is not None
            self.smallest_item = minimum_item_size(field.item, version, flexible)
        if isinstance(field.item, Field):
            self.item = FieldLayout(field.item, version, flexible, None)
        elif field.item is not None:
            self.fields = Layout(field.item, version, flexible)


def _default_of(field: Field) -> Any:
    """Return the default of a field, or _FRESH_LIST if each object gets a new list."""
    if field.default == () and field.kind == "array":
        return _FRESH_LIST
    if field.default == () and field.kind == "struct":
        assert isinstance(field.item, type)
        return default_of(field.item)
    return field.default


class Layout:
    """A struct at one version: its fields in sequence, those with tags, and those that the version does not have."""

    __slots__ = ("absent", "cls", "is_flexible", "plain", "tagged")

    def __init__(self, cls: type[Struct], version: int, flexible: bool) -> None:
        self.cls = cls
        self.is_flexible = flexible
        plain, tagged, absent = struct_fields(cls, version, flexible)
        self.plain = tuple([FieldLayout(field, version, flexible, cls) for field in plain])
        self.tagged = tuple([FieldLayout(field, version, flexible, cls) for field in tagged])
        self.absent = tuple([FieldLayout(field, version, flexible, cls) for field in absent])


_PROTOTYPES: dict[Any, Layout] = {}


def blank(cls: type[T]) -> T:
    """Make an object with all its fields at their defaults, as ``cls()`` does."""
    prototype = _PROTOTYPES.get(cls)
    if prototype is None:
        # No field has version -1, so all fields are absent ones.
        prototype = _PROTOTYPES[cls] = Layout(cast("type[Struct]", cls), -1, flexible=False)
    target = words.new_object(cls)
    for field in prototype.absent:
        words.put_field(target, field.slot, _new_list() if field.default is _FRESH_LIST else field.default)
    return target  # type: ignore[no-any-return]


class Walker:
    """Coder of one message at one version. Replaces a :class:`tidelog.protocol.schema.source.CompiledCoder`."""

    __slots__ = ("_decoder", "_encoder", "_layout", "_message", "_version")

    def __init__(self, cls: type[Message], version: int) -> None:
        self._message = cls
        self._version = version
        self._layout = Layout(cls, version, cls.FLEXIBLE.has(version))
        self._decoder: CompiledCoder | None = None
        self._encoder: CompiledCoder | None = None

    def decode(self, view: Buffer, position: int, elements: int = MAX_ELEMENTS) -> tuple[Any, int]:
        """Decode the message at ``position`` of ``view``; return it and the position after it. Raises
        InvalidRequestError.
        """
        reader = _Reader(view, position, elements)
        held = words.hold(view)
        reader.data, reader.size = held.data, held.size
        try:
            message = _read_struct(reader, self._layout)
        except (MalformedError, ValueError):
            return self._decode_again(view, position, elements)
        finally:
            words.release(held)
        return message, reader.position

    def encode(self, message: Message) -> list[Part]:
        """Encode the message as parts. Raises EncodeError."""
        try:
            return self._encode(message, 0, 0)
        except (AttributeError, TypeError, ValueError, OverflowError):
            return self._encode_again(message)

    def encode_frame(self, message: Message, correlation_id: int, header_bytes: int) -> list[Part]:
        """Encode the message as parts after its length and response header. ``header_bytes`` is 4, or 5 with an empty
        set of tagged fields. Raises EncodeError.
        """
        try:
            return self._encode(message, correlation_id, header_bytes)
        except (AttributeError, TypeError, ValueError, OverflowError):
            return add_frame(self._encode_again(message), correlation_id, header_bytes)

    def _encode(self, message: Message, correlation_id: int, header_bytes: int) -> list[Part]:
        writer = _SPARES.pop() if _SPARES else _Writer()
        start = 4 + header_bytes if header_bytes else 0
        writer.size = start
        writer.parts = []
        _write_struct(writer, self._layout, message)
        parts: list[Part] = writer.parts
        size = writer.size
        if header_bytes and not parts:
            _put_head(writer.data, size, correlation_id, header_bytes)
        if size or not parts:
            parts.append(words.copy_of(writer.data, 0, size))
        if header_bytes and len(parts) > 1:
            total = 0
            for part in parts:
                total += len(part)
            _put_bytes(writer.data, 0, parts[0])  # the copy has space for the head at its beginning
            _put_head(writer.data, total, correlation_id, header_bytes)
            parts[0] = words.copy_of(writer.data, 0, len(parts[0]))
        writer.parts = None
        if writer.capacity <= _LARGEST_SPARE and len(_SPARES) < _MAX_SPARES:
            _SPARES.append(writer)
        return parts

    def _decode_again(self, view: Buffer, position: int, elements: int) -> tuple[Any, int]:
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = compile_decoder(self._message, self._version)
        return decoder.decode(view, position, elements)

    def _encode_again(self, message: Message) -> list[Part]:
        encoder = self._encoder
        if encoder is None:
            encoder = self._encoder = compile_encoder(self._message, self._version)
        return encoder.encode(message)


# ---- decoding


class _Reader:
    """Reader of a buffer: its position, and the number of elements that arrays may still have."""

    __slots__ = ("data", "left", "position", "size", "view")

    if TYPE_CHECKING:
        data: Any

    def __init__(self, view: Any, position: int, left: int) -> None:
        self.view = view
        self.position = position
        self.left = left
        self.size = 0


def _read_struct(reader: Any, layout: Layout) -> Any:
    target = words.new_object(layout.cls)
    for field in layout.absent:
        words.put_field(target, field.slot, _new_list() if field.default is _FRESH_LIST else field.default)
    for field in layout.tagged:
        words.put_field(target, field.slot, _new_list() if field.default is _FRESH_LIST else field.default)
    for field in layout.plain:
        words.put_field(target, field.slot, _read_field(reader, field))
    if layout.is_flexible:
        _read_tagged(reader, layout, target)
    return target


def _read_field(reader: Any, field: FieldLayout) -> Any:
    kind = field.kind
    if kind <= _LAST_FIXED:
        return _read_fixed(reader, kind, field.size)
    if kind == _STRUCT:
        if field.is_nullable and _read_signed(reader, 1) < 0:
            return None
        return _read_struct(reader, field.fields)
    count = _read_unsigned(reader) - 1 if field.is_flexible else _read_signed(reader, 2 if kind == _STRING else 4)
    if count < 0:
        if count == -1 and field.is_nullable:
            return None
        raise MalformedError
    if kind == _ARRAY:
        return _read_array(reader, field, count)
    start = reader.position
    if count > reader.size - start or (kind == _STRING and count > _LONGEST_STRING):
        raise MalformedError
    reader.position = start + count
    return words.text_of(reader.data, start, count) if kind == _STRING else reader.view[start : start + count]


def _read_fixed(reader: Any, kind: int, size: int) -> Any:
    data, at = reader.data, reader.position
    if size > reader.size - at:
        raise MalformedError
    reader.position = at + size
    if kind == _INT32:
        return words.load_be_i32(data, at)
    if kind == _INT64:
        return words.load_be_i64(data, at)
    if kind == _INT16:
        return words.load_be_i16(data, at)
    if kind == _UUID:
        return words.copy_of(data, at, _UUID_BYTES)
    if kind == _BOOL:
        return data[at] != 0
    if kind == _INT8:
        number = data[at]
        return number - 256 if number > 127 else number
    if kind == _UINT16:
        return words.load_be_u16(data, at)
    if kind == _UINT32:
        return words.load_be_u32(data, at)
    return _FLOAT.unpack(words.copy_of(data, at, 8))[0]


def _read_signed(reader: Any, size: int) -> int:
    """Read a length of 2 or 4 bytes, or the byte before a nullable struct, which is negative for null."""
    data, at = reader.data, reader.position
    if size > reader.size - at:
        raise MalformedError
    reader.position = at + size
    if size == 4:
        return words.load_be_i32(data, at)
    if size == 2:
        return words.load_be_i16(data, at)
    return -1 if data[at] > 127 else 0


def _read_unsigned(reader: _Reader) -> int:
    """Read an unsigned varint of 32 bits."""
    data, at, size = reader.data, reader.position, reader.size
    value: int = 0
    shift = 0
    while shift < 35:
        if at >= size:
            raise MalformedError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > words.MASK_32:
                raise MalformedError
            reader.position = at
            return value
        shift += 7
    raise MalformedError


def _read_array(reader: Any, field: FieldLayout, count: int) -> list[Any]:
    reader.left -= count
    if reader.left < 0 or count * field.smallest_item > reader.size - reader.position:
        raise MalformedError
    elements: list[Any] = []
    layout, item = field.fields, field.item
    for _ in range(count):
        element = _read_struct(reader, layout) if layout is not None else _read_field(reader, item)
        elements.append(element)
    return elements


def _read_tagged(reader: Any, layout: Layout, target: Any) -> None:
    """Read the tagged fields: known ones into ``target``; unknown ones are skipped."""
    count = _read_unsigned(reader)
    if count > _MAX_TAGGED:
        raise MalformedError
    for _ in range(count):
        tag, size = _read_unsigned(reader), _read_unsigned(reader)
        end = reader.position + size
        if end > reader.size:
            raise MalformedError
        for field in layout.tagged:
            if field.tag == tag:
                words.put_field(target, field.slot, _read_field(reader, field))
                if reader.position != end:
                    raise MalformedError
                break
        reader.position = end


# ---- encoding


class _Writer:
    """Writer to a buffer that grows; ``parts`` are the finished parts before it."""

    __slots__ = ("buffer", "capacity", "data", "parts", "size")

    def __init__(self) -> None:
        self.parts: Any = None
        self.buffer = bytearray(_FIRST_BYTES)
        self.capacity = _FIRST_BYTES
        self.data = words.address_of(self.buffer)
        self.size = 0


_SPARES: list[_Writer] = []
"""Idle writers for later messages; a writer is not kept after an error."""


def _reserve(writer: Any, size: int) -> None:
    if size > writer.capacity - writer.size:
        more = max(writer.capacity, size)
        writer.buffer.extend(bytes(more))
        writer.capacity += more
        writer.data = words.address_of(writer.buffer)


def _put_head(data: Any, size: int, correlation_id: int, header_bytes: int) -> None:
    """Write the length and the response header of a frame of ``size`` bytes."""
    words.store_be_u32(data, 0, size - 4)
    words.store_be_u32(data, 4, correlation_id)
    if header_bytes > 4:
        data[8] = 0  # no tagged fields


def _write_struct(writer: Any, layout: Layout, value: Any) -> None:
    if type(value) is not layout.cls:
        raise TypeError
    for field in layout.plain:
        _write_field(writer, field, words.get_field(value, field.slot))
    if layout.is_flexible:
        _write_tagged(writer, layout, value)


def _write_field(writer: Any, field: FieldLayout, value: Any) -> None:
    kind = field.kind
    if kind <= _LAST_FIXED:
        _write_fixed(writer, kind, field.size, value)
    elif kind == _STRUCT:
        _write_nested(writer, field, value)
    elif value is None:
        if not field.is_nullable:
            raise TypeError
        _write_length(writer, field, -1)
    elif kind == _ARRAY:
        _write_array(writer, field, value)
    elif kind == _STRING:
        _write_text(writer, field, value)
    elif kind == _RECORDS:
        _write_records(writer, field, value)
    else:
        _write_length(writer, field, len(value))
        _write_bytes(writer, value)


def _write_fixed(writer: Any, kind: int, size: int, value: Any) -> None:
    _reserve(writer, size)
    data, at = writer.data, writer.size
    writer.size = at + size
    if kind == _BOOL:
        data[at] = 1 if value else 0
        return
    if kind == _UUID:
        if type(value) is not bytes or len(value) != _UUID_BYTES:
            raise TypeError
        _put_bytes(data, at, value)
        return
    if kind == _FLOAT64:
        _put_bytes(data, at, _FLOAT.pack(value))
        return
    if not isinstance(value, int):
        raise TypeError
    _write_integer(data, at, kind, value)


def _write_integer(data: words.Bytes, at: int, kind: int, number: int) -> None:
    if kind == _INT64:
        words.store_be_u64(data, at, number)
    elif kind == _INT32:
        _check_range(number, -0x80000000, 0x7FFFFFFF)
        words.store_be_u32(data, at, number)
    elif kind == _INT16:
        _check_range(number, -0x8000, 0x7FFF)
        words.store_be_u16(data, at, number)
    elif kind == _INT8:
        _check_range(number, -0x80, 0x7F)
        data[at] = number & 0xFF
    elif kind == _UINT16:
        _check_range(number, 0, 0xFFFF)
        words.store_be_u16(data, at, number)
    else:
        _check_range(number, 0, words.MASK_32)
        words.store_be_u32(data, at, number)


def _check_range(number: int, lowest: int, highest: int) -> None:
    if number < lowest or number > highest:
        raise ValueError


def _put_bytes(data: Any, at: int, piece: Any) -> None:
    held = words.hold(piece)
    words.copy_bytes(data, at, held.data, 0, held.size)
    words.release(held)


def _write_bytes(writer: Any, piece: Any) -> None:
    held = words.hold(piece)
    size = held.size
    _reserve(writer, size)
    words.copy_bytes(writer.data, writer.size, held.data, 0, size)
    words.release(held)
    writer.size += size


def _write_unsigned(writer: Any, number: int) -> None:
    """Write an unsigned varint."""
    _reserve(writer, 10)
    data, at = writer.data, writer.size
    while number > 0x7F:
        data[at] = number & 0x7F | 0x80
        at += 1
        number >>= 7
    data[at] = number
    writer.size = at + 1


def _write_length(writer: Any, field: FieldLayout, count: int) -> None:
    """Write the length before a value; -1 means null."""
    if field.is_flexible:
        _write_unsigned(writer, count + 1)
    elif field.kind == _STRING:
        _write_fixed(writer, _INT16, 2, count)
    else:
        _write_fixed(writer, _INT32, 4, count)


def _write_text(writer: Any, field: FieldLayout, text: str) -> None:
    encoded = text.encode()
    if len(encoded) > _LONGEST_STRING:
        raise ValueError
    _write_length(writer, field, len(encoded))
    _write_bytes(writer, encoded)


def _write_nested(writer: Any, field: FieldLayout, value: Any) -> None:
    if field.is_nullable:
        _reserve(writer, 1)
        writer.data[writer.size] = 0xFF if value is None else 1
        writer.size += 1
        if value is None:
            return
    if value is field.default:  # the shared default has another class, which refuses changes
        value = field.fields.cls()
    _write_struct(writer, field.fields, value)


def _write_array(writer: Any, field: FieldLayout, elements: Any) -> None:
    _write_length(writer, field, len(elements))
    layout, item = field.fields, field.item
    for element in elements:
        if layout is not None:
            _write_struct(writer, layout, element)
        else:
            _write_field(writer, item, element)


def _write_records(writer: Any, field: FieldLayout, records: Any) -> None:
    """Write records; slices of files and large buffers become separate parts."""
    pieces = records if isinstance(records, list) else (records,)
    size = 0
    for piece in pieces:
        size += len(piece)
    _write_length(writer, field, size)
    for piece in pieces:
        if not isinstance(piece, TransferableRecords) and len(piece) < _COPY_BELOW:
            _write_bytes(writer, piece)
            continue
        if writer.size:
            writer.parts.append(words.copy_of(writer.data, 0, writer.size))
            writer.size = 0
        writer.parts.append(piece)


def _write_tagged(writer: Any, layout: Layout, value: Any) -> None:
    """Write the tagged fields that differ from their defaults, in the order of their tags."""
    differing: list[tuple[FieldLayout, Any]] | None = None
    for field in layout.tagged:
        content = words.get_field(value, field.slot)
        if _differs(content, field):
            if differing is None:
                differing = []
            differing.append((field, content))
    if differing is None:
        _write_unsigned(writer, 0)
        return
    _write_unsigned(writer, len(differing))
    for field, content in differing:
        inner = _Writer()
        inner.parts = []
        _write_field(inner, field, content)
        if len(inner.parts):
            raise TypeError
        _write_unsigned(writer, field.tag)
        _write_unsigned(writer, inner.size)
        _write_bytes(writer, words.copy_of(inner.data, 0, inner.size))


def _differs(content: Any, field: FieldLayout) -> bool:
    default = field.default
    if content is default:
        return False
    if default is _FRESH_LIST:
        return content is None or len(content) > 0
    return bool(content != default)
