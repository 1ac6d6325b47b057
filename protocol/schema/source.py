"""Shared parts of the two compilers of :mod:`tidelog.protocol.schema.fields`: an emitter of Python lines that remembers
which field each line belongs to, and the constructors.

Compiled code keeps no state for its errors. When a line raises, the traceback's line number gives the field, and the
local ``p`` in its frame gives the position in the buffer. So naming both costs nothing before an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, cast

from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.schema.fields import EncodeError, Field, Message, MessageTooLongError, Struct, StructMeta
from tidelog.protocol.types import MAX_ELEMENTS, Buffer, MalformedError, Part

# Kafka type -> (struct format character, bytes), for the types of fixed size.
FIXED = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "bool": ("?", 1),
    "uuid": ("16s", 16),
}


class Source:
    """Lines of one function under construction, the field of each, and the names they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fields: list[tuple[tuple[int, str], ...]] = []
        self.names: dict[str, Any] = {}
        self.indent = 1
        self.path: list[str] = []
        self._counter = 0

    def emit(self, line: str, fields: tuple[tuple[int, str], ...] = ()) -> None:
        """Append a line. ``fields`` are the fields that it reads or writes, as pairs of byte offset in the line's data
        and path; by default the current path at offset 0.
        """
        self.lines.append("    " * self.indent + line)
        self.fields.append(fields or ((0, ".".join(self.path)),))

    def new_name(self, prefix: str) -> str:
        """Return a local name not used yet in this function."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name(self, name: str, value: Any) -> str:
        """Make ``value`` known to the function by ``name``."""
        assert self.names.setdefault(name, value) is value, f"{name} means two things in one message"
        return name

    def compile(self, cls: type[Message], version: int, header: str) -> CompiledCoder:
        """Compile the function under ``header`` ("def …:"), ready to call."""
        text = "\n".join((header, *self.lines, ""))
        filename = f"<{cls.__name__} v{version} {header[4:10]}>"
        exec(compile(text, filename, "exec"), self.names)
        function = self.names[header[4 : header.index("(")]]
        return CompiledCoder(f"{cls.__name__} v{version}", function, text, self.fields)


_MALFORMED = (IndexError, struct.error, UnicodeDecodeError, MalformedError)
_UNENCODABLE = (AttributeError, TypeError, ValueError, struct.error)


class CompiledCoder:
    """A compiled decoder or encoder: the function, its source, and the fields of its lines."""

    __slots__ = ("fields", "function", "source", "title")

    def __init__(
        self, title: str, function: Callable[..., Any], source: str, fields: list[tuple[tuple[int, str], ...]]
    ) -> None:
        self.title = title
        self.function = function
        self.source = source
        self.fields = fields

    def decode(self, view: Buffer, position: int, elements: int = MAX_ELEMENTS) -> tuple[Any, int]:
        """Decode the message at ``position``; return it and the position after it. Raises InvalidRequestError."""
        try:
            return self.function(view, position, elements)  # type: ignore[no-any-return]
        except _MALFORMED as error:
            raise self.invalid_request(error) from None

    def decode_in_steps(
        self, view: Buffer, position: int, elements: int = MAX_ELEMENTS
    ) -> Generator[None, None, tuple[Any, int]]:
        """Run ``decode`` of a coder in steps."""
        try:
            return (yield from self.function(view, position, elements))  # type: ignore[no-any-return]
        except _MALFORMED as error:
            raise self.invalid_request(error) from None

    def encode(self, message: Any) -> list[Part]:
        """Encode the message as parts. Raises EncodeError."""
        try:
            return self.function(message)  # type: ignore[no-any-return]
        except _UNENCODABLE as error:
            raise self.encode_error(error) from error

    def encode_in_steps(self, message: Any, max_bytes: int) -> Generator[None, None, list[Part]]:
        """Run ``encode`` of a coder in steps, for a message of at most ``max_bytes`` without its records."""
        try:
            return (yield from self.function(message, max_bytes))  # type: ignore[no-any-return]
        except MessageTooLongError:
            raise
        except _UNENCODABLE as error:
            raise self.encode_error(error) from error

    def encode_frame(self, message: Any, correlation_id: int, header_bytes: int) -> list[Part]:
        """Encode the message as parts after its length and header. Raises EncodeError."""
        return add_frame(self.encode(message), correlation_id, header_bytes)

    def invalid_request(self, error: Exception) -> InvalidRequestError:
        """Build the error for an exception in a decoder: message, version, field and position."""
        fields, variables = self._find_fields(error.__traceback__)
        position = variables.get("p", 0)
        path = fields[0][1]
        if isinstance(error, struct.error):
            left = variables.get("e", 0) - position
            offset, path = next((field for field in reversed(fields) if field[0] <= left), fields[0])
            position += offset
        if isinstance(error, IndexError | struct.error):
            reason = "the message ends inside this field"
        else:
            reason = "bytes that are not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        return InvalidRequestError(f"{self.title}: field {path or 'tagged fields'} at byte {position}: {reason}")

    def encode_error(self, error: Exception) -> EncodeError:
        """Build the error for an exception in an encoder: message, version and fields."""
        fields, _ = self._find_fields(error.__traceback__)
        paths = ", ".join(path for _, path in fields)
        return EncodeError(f"{self.title}: field {paths}: {error}")

    def _find_fields(self, traceback: TracebackType | None) -> tuple[tuple[tuple[int, str], ...], dict[str, Any]]:
        """Return the fields at the line of the compiled function in ``traceback``, and that frame's local variables."""
        while traceback is not None:
            if traceback.tb_frame.f_code is self.function.__code__:
                # Line 1 is the def.
                return self.fields[traceback.tb_lineno - 2], traceback.tb_frame.f_locals
            traceback = traceback.tb_next
        return ((0, "?"),), {}


def add_frame(parts: list[Part], correlation_id: int, header_bytes: int) -> list[Part]:
    """Add the length and the response header before the parts of a message, joined with the first part if that is
    bytes."""
    size = header_bytes
    for part in parts:
        size += len(part)
    head = _HEADS[header_bytes](size, correlation_id)
    if isinstance(parts[0], bytes):
        parts[0] = head + parts[0]
    else:
        parts.insert(0, head)
    return parts


_HEADS: dict[int, Callable[..., bytes]] = {4: struct.Struct(">ii").pack, 5: struct.Struct(">iix").pack}


def default_source(source: Source, field: Field) -> str:
    """Return an expression for the default of ``field``: a new list for arrays, a shared and frozen object for
    structs."""
    if field.default == () and field.kind == "array":
        return "[]"
    if field.default == () and field.kind == "struct":
        assert isinstance(field.item, type)
        return source.name(f"default_{field.item.__name__}", default_of(field.item))
    return repr(field.default)


_frozen_defaults: dict[type[Struct], Struct] = {}


def default_of(cls: type[Struct]) -> Struct:
    """Return the shared default of ``cls``, an instance whose fields cannot be assigned."""
    default = _frozen_defaults.get(cls)
    if default is None:

        def refuse(_: object, name: str, __: object) -> None:
            raise AttributeError(
                f"{name} of the shared default {cls.__name__} cannot be set; assign a new {cls.__name__}"
            )

        # The class is swapped once the values are set: the slots keep them, and only assignment is refused.
        namespace = {"__setattr__": refuse, "__module__": cls.__module__}
        frozen = cast("type[Struct]", StructMeta(cls.__name__, (cls,), namespace))
        frozen.FIELDS = cls.FIELDS
        default = cls()
        default.__class__ = frozen
        _frozen_defaults[cls] = default
    return default


def compile_constructor(cls: type[Struct]) -> Callable[..., None]:
    """Compile ``__init__`` of a struct: keywords only, every field with its default."""
    source = Source()
    parameters = []
    for field in cls.FIELDS:
        default = default_source(source, field)
        parameters.append(f"{field.name}={'None' if default == '[]' else default}")
        if default == "[]" and field.nullable.highest < 0:
            source.emit(f"self.{field.name} = [] if {field.name} is None else {field.name}")
        elif default == "[]":
            parameters[-1] = f"{field.name}=empty"
            source.names["empty"] = _EMPTY
            source.emit(f"self.{field.name} = [] if {field.name} is empty else {field.name}")
        else:
            source.emit(f"self.{field.name} = {field.name}")
    star = "*, " if parameters else ""
    text = f"def __init__(self, {star}{', '.join(parameters)}):\n" + "\n".join([*source.lines, "    return None", ""])
    exec(compile(text, f"<{cls.__name__} constructor>", "exec"), source.names)
    constructor: Callable[..., None] = source.names["__init__"]
    return constructor


_EMPTY: Any = object()


def minimum_size(cls: type[Struct], version: int, flexible: bool) -> int:
    """Return the smallest size of a ``cls`` at ``version``, by which an array's length is checked. Never 0."""
    size = 1 if flexible else 0
    for field in cls.FIELDS:
        if field.versions.has(version) and not (flexible and field.tag is not None):
            size += _minimum_field_size(field, version, flexible)
    assert size > 0, f"{cls.__name__} v{version} takes no bytes: nothing would bound an array of it"
    return size


def _minimum_field_size(field: Field, version: int, flexible: bool) -> int:
    fixed = FIXED.get(field.kind)
    if fixed is not None:
        return fixed[1]
    if field.kind == "struct":
        if field.nullable.has(version):
            return 1
        assert isinstance(field.item, type)
        return minimum_size(field.item, version, flexible)
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


def minimum_item_size(item: Field | type[Struct], version: int, flexible: bool) -> int:
    """Return the smallest size of one element of an array."""
    if isinstance(item, Field):
        return _minimum_field_size(item, version, flexible)
    return minimum_size(item, version, flexible)


def has_field(cls: type[Message], name: str, version: int) -> bool:
    """Return whether a message has a field of this name at this version."""
    return any(field.name == name and field.versions.has(version) for field in cls.FIELDS)


def position_of(cls: type[Message], name: str, version: int) -> int | None:
    """Return the position of an untagged field of fixed size in all encodings of a version: bytes from the beginning
    or, negative, from the end. None if a field of variable length is before it, and it is not the last field or tagged
    fields may follow.
    """
    flexible = cls.FLEXIBLE.has(version)
    plain, tagged, _ = struct_fields(cls, version, flexible)
    position = 0
    for field in plain:
        if field.name == name:
            return position
        if field.kind not in FIXED:
            break
        position += FIXED[field.kind][1]
    last = plain[-1]
    return -FIXED[last.kind][1] - flexible if last.name == name and not tagged else None


def struct_fields(cls: type[Struct], version: int, flexible: bool) -> tuple[list[Field], list[Field], list[Field]]:
    """Return the fields of ``cls`` at ``version`` in three lists: those in sequence, those tagged (by tag), and those
    it does not have.
    """
    plain: list[Field] = []
    tagged: list[Field] = []
    absent: list[Field] = []
    for field in cls.FIELDS:
        if not field.versions.has(version):
            absent.append(field)
        elif flexible and field.tag is not None:
            tagged.append(field)
        else:
            plain.append(field)
    tagged.sort(key=lambda field: field.tag or 0)
    return plain, tagged, absent
