"""Writer of Protobuf file descriptors as ``.proto`` text: the inverse of protoc, for descriptors that clients send and
for the comparison of schemas.

The text compiles to the same descriptor, except comments and the options of ranges of extensions. Names of types and of
custom options are full names with a leading dot. A decoded descriptor has custom options as unknown bytes:
``decode_options`` decodes those whose definitions it gets; the text omits the others. Any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from google.protobuf import text_encoding, text_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

MAX_FIELD = 2**29
"""The number after the largest one of a field; ends of ranges are exclusive for fields."""
MAX_ENUM = 2**31 - 1
"""The largest number of an enum's value; ends of ranges are inclusive for these."""
_KINDS = FieldDescriptorProto.Type.items()
SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in _KINDS}
_NAMED = (FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_ENUM, FieldDescriptorProto.TYPE_GROUP)
_QUOTED = (FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES)


def decode_options(file: FileDescriptorProto, imports: Iterable[FileDescriptorProto]) -> FileDescriptorProto:
    """Return the file with the custom options that it and its imports define decoded to fields.

    ``imports`` are in an order in which each one follows those that it imports. Raises TypeError if one is missing or a
    file contradicts itself, and DecodeError if options do not fit their definitions.
    """
    pool = DescriptorPool()
    for one in (*imports, file):
        pool.AddSerializedFile(one.SerializeToString())
    try:
        kind = pool.FindMessageTypeByName(FileDescriptorProto.DESCRIPTOR.full_name)
    except KeyError:  # without an import of descriptor.proto there are no custom options
        return file
    return cast(FileDescriptorProto, GetMessageClass(kind).FromString(file.SerializeToString()))


def text_of(file: FileDescriptorProto) -> str:
    """Return the text of a file."""
    return "\n".join(Writer(file).lines()) + "\n"


class Writer:
    """Writer of one file's lines."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._is_proto2 = file.syntax in ("", "proto2")

    def lines(self) -> Iterator[str]:
        file = self._file
        if file.syntax == "editions":
            yield f'edition = "{_edition(file)}";'
        else:
            yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        for number, name in enumerate(file.dependency):
            kind = "public " if number in file.public_dependency else "weak " if number in file.weak_dependency else ""
            yield f"import {kind}{_quote(name)};"
        yield from (f"option {option};" for option in _options(file.options))
        groups = {one.type_name for one in file.extension if one.type == FieldDescriptorProto.TYPE_GROUP}
        prefix = f".{file.package}" if file.package else ""
        for message in file.message_type:
            if f"{prefix}.{message.name}" not in groups:
                yield from self._message(message, f"{prefix}.{message.name}")
        for enum in file.enum_type:
            yield from self._enum(enum)
        yield from self._extensions(file.extension, {f"{prefix}.{one.name}": one for one in file.message_type})
        for service in file.service:
            yield from _service(service)

    def _message(self, message: DescriptorProto, name: str) -> Iterator[str]:
        yield f"message {message.name} {{"
        yield from _indent(self._body(message, name))
        yield "}"

    def _body(self, message: DescriptorProto, name: str) -> Iterator[str]:
        nested = {f"{name}.{one.name}": one for one in message.nested_type}
        fields = [*message.field, *message.extension]
        written = {one.type_name for one in fields if one.type == FieldDescriptorProto.TYPE_GROUP}
        yield from (f"option {option};" for option in _options(message.options))
        yield from _reserved_lines(message)
        for number, one in _members(message):
            if number is None:
                yield from self._field(one[0], nested)
            else:
                oneof = message.oneof_decl[number]
                yield f"oneof {oneof.name} {{"
                yield from _indent(f"option {option};" for option in _options(oneof.options))
                yield from _indent(line for field in one for line in self._field(field, nested, has_label=False))
                yield "}"
        for inner, each in nested.items():
            if inner not in written and not each.options.map_entry:
                yield from self._message(each, inner)
        for enum in message.enum_type:
            yield from self._enum(enum)
        yield from self._extensions(message.extension, nested)

    def _field(
        self, field: FieldDescriptorProto, nested: dict[str, DescriptorProto], *, has_label: bool = True
    ) -> Iterator[str]:
        entry = nested.get(field.type_name)
        options = _bracket(_field_options(field))
        if entry is not None and entry.options.map_entry:
            key, value = entry.field
            yield f"map<{_type(key)}, {_type(value)}> {field.name} = {field.number}{options};"
        elif field.type == FieldDescriptorProto.TYPE_GROUP and entry is not None and self._is_proto2:
            label = self._label(field) if has_label else ""
            yield f"{label}group {entry.name} = {field.number}{options} {{"
            yield from _indent(self._body(entry, field.type_name))
            yield "}"
        else:
            label = self._label(field) if has_label else ""
            yield f"{label}{_type(field)} {field.name} = {field.number}{options};"

    def _label(self, field: FieldDescriptorProto) -> str:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return "repeated "
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            return "required "
        return "optional " if self._is_proto2 or field.proto3_optional else ""

    def _enum(self, enum: EnumDescriptorProto) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        yield from _indent(f"option {option};" for option in _options(enum.options))
        yield from _indent(_reserved_values(enum))
        for value in enum.value:
            yield f"  {value.name} = {value.number}{_bracket(_options(value.options))};"
        yield "}"

    def _extensions(
        self, extensions: Iterable[FieldDescriptorProto], nested: dict[str, DescriptorProto]
    ) -> Iterator[str]:
        for field in extensions:
            yield f"extend {field.extendee} {{"
            yield from _indent(self._field(field, nested))
            yield "}"


def _members(message: DescriptorProto) -> Iterator[tuple[int | None, list[FieldDescriptorProto]]]:
    """Yield fields in order; those of a oneof are together, at the position of the first."""
    oneofs: dict[int, list[FieldDescriptorProto]] = {}
    rows: list[tuple[int | None, list[FieldDescriptorProto]]] = []
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            rows.append((None, [field]))
        elif field.oneof_index in oneofs:
            oneofs[field.oneof_index].append(field)
        else:
            rows.append((field.oneof_index, oneofs.setdefault(field.oneof_index, [field])))
    yield from rows


def _type(field: FieldDescriptorProto) -> str:
    return str(field.type_name) if field.type in _NAMED else SCALARS[field.type]


def _field_options(field: FieldDescriptorProto) -> Iterator[str]:
    if field.HasField("default_value"):
        is_bytes = field.type == FieldDescriptorProto.TYPE_BYTES
        text = f'"{field.default_value}"' if is_bytes else _quote(field.default_value)
        yield f"default = {text if field.type in _QUOTED else field.default_value}"
    if field.json_name and field.json_name != camel_case(field.name):
        yield f"json_name = {_quote(field.json_name)}"
    yield from _options(field.options)


def camel_case(name: str) -> str:
    """Return the default JSON name of a field."""
    first, *others = name.split("_")
    return first + "".join(one[:1].upper() + one[1:] for one in others)


def _options(options: Any, prefix: str = "") -> Iterator[str]:
    """Yield the options that are set and decoded."""
    for field, value in options.ListFields():
        if field.name in ("map_entry", "uninterpreted_option") and not field.is_extension:
            continue
        name = f"{prefix}(.{field.full_name})" if field.is_extension else f"{prefix}{field.name}"
        for one in value if field.is_repeated else (value,):
            if field.message_type is None:
                yield f"{name} = {_constant(field, one)}"
            elif field.is_extension:
                yield f"{name} = {{ {text_format.MessageToString(one, as_one_line=True, as_utf8=True)} }}"
            else:
                yield from _options(one, f"{name}.")


def _constant(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else str(known.name)
    if isinstance(value, bytes):
        return f'"{text_encoding.CEscape(value, as_utf8=False)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quote(value) if isinstance(value, str) else str(value)


def _bracket(options: Iterable[str]) -> str:
    text = ", ".join(options)
    return f" [{text}]" if text else ""


def _reserved_lines(message: DescriptorProto) -> Iterator[str]:
    for extensions in message.extension_range:
        yield f"extensions {_range(extensions.start, extensions.end - 1, MAX_FIELD - 1)};"
    ranges = [_range(one.start, one.end - 1, MAX_FIELD - 1) for one in message.reserved_range]
    yield from _reservation(ranges, message.reserved_name)


def _reserved_values(enum: EnumDescriptorProto) -> Iterator[str]:
    yield from _reservation([_range(one.start, one.end, MAX_ENUM) for one in enum.reserved_range], enum.reserved_name)


def _reservation(ranges: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    if ranges:
        yield f"reserved {', '.join(ranges)};"
    if names:
        yield f"reserved {', '.join(map(_quote, names))};"


def _range(first: int, last: int, highest: int) -> str:
    return str(first) if first == last else f"{first} to {'max' if last >= highest else last}"


def _service(service: ServiceDescriptorProto) -> Iterator[str]:
    yield f"service {service.name} {{"
    yield from _indent(f"option {option};" for option in _options(service.options))
    for method in service.method:
        given = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
        returned = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
        yield f"  rpc {method.name} ({given}) returns ({returned}) {{"
        yield from _indent(_indent(f"option {option};" for option in _options(method.options)))
        yield "  }"
    yield "}"


def _edition(file: FileDescriptorProto) -> str:
    name = file.DESCRIPTOR.fields_by_name["edition"].enum_type.values_by_number[file.edition].name
    return str(name).removeprefix("EDITION_")


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
