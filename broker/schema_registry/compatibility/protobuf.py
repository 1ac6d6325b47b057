"""Protobuf's rules, as Confluent's registry has them: the changes from the original to the update.

    compatible      messages, enums and their values are added, enums and their values removed; fields that are not
                    required are added, removed, renamed, or moved alone into a new oneof; a oneof is removed
    incompatible    PACKAGE_CHANGED, MESSAGE_REMOVED, REQUIRED_FIELD_ADDED, REQUIRED_FIELD_REMOVED,
                    FIELD_KIND_CHANGED (scalar, message, map), FIELD_SCALAR_KIND_CHANGED, FIELD_NAMED_TYPE_CHANGED,
                    ONEOF_FIELD_REMOVED, MULTIPLE_FIELDS_MOVED_TO_ONEOF, FIELD_MOVED_TO_EXISTING_ONEOF

Scalars of one group have the same encoding: int32, int64, uint32, uint64, bool and enums; sint32 and sint64; string and
bytes; fixed32 and sfixed32; fixed64 and sfixed64. Messages are compared by name, fields by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from tidelog.broker.schema_registry.compatibility.bounds import MAX_FAULTS, cut
from tidelog.broker.schema_registry.formats.proto_text import SCALARS
from tidelog.broker.schema_registry.formats.schema import ParsedSchema

GROUPS = (
    ("int32", "int64", "uint32", "uint64", "bool", "enum"),
    ("sint32", "sint64"),
    ("string", "bytes"),
    ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"),
    ("float",),
    ("double",),
)
GROUP_OF = {name: group for group in GROUPS for name in group}


class Side(NamedTuple):
    """A schema, with the messages of it and its imports: full name -> message and its package."""

    file: FileDescriptorProto
    messages: Mapping[str, tuple[DescriptorProto, str]]


def reading_faults(reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
    """Collect reasons why data of ``writer`` cannot be read by ``reader``."""
    original, update = _side(writer), _side(reader)
    comparison = Comparison(original, update)
    if original.file.package != update.file.package:
        comparison.add_fault("PACKAGE_CHANGED", "#/")
    comparison.compare_messages(original.file.message_type, update.file.message_type, "#")
    return comparison.faults


def _side(schema: ParsedSchema) -> Side:
    file, imports = schema.model["file"], schema.model["imports"]
    return Side(file, {name: found for one in (file, *imports) for name, found in _messages(one)})


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, tuple[DescriptorProto, str]]]:
    prefix = f".{file.package}" if file.package else ""
    waiting = [(f"{prefix}.{one.name}", one) for one in file.message_type]
    while waiting:
        name, message = waiting.pop()
        yield name, (message, file.package)
        waiting += [(f"{name}.{one.name}", one) for one in message.nested_type]


class Comparison:
    """One comparison of two schemas, which collects faults."""

    def __init__(self, original: Side, update: Side) -> None:
        self._original = original
        self._update = update
        self._compared: set[tuple[str, str]] = set()
        self.faults: list[str] = []

    def add_fault(self, kind: str, path: str) -> None:
        """Add a fault, unless there are MAX_FAULTS."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(f"{{errorType:'{kind}', path:'{cut(path)}'}}")

    def compare_messages(self, original: Any, update: Any, path: str) -> None:
        """Compare the messages of one level, by their names."""
        after = {one.name: one for one in update}
        for message in original:
            if message.options.map_entry:
                continue
            where = f"{path}/{message.name}"
            if message.name in after:
                self._compare_message(message, after[message.name], where)
                self.compare_messages(message.nested_type, after[message.name].nested_type, where)
            else:
                self.add_fault("MESSAGE_REMOVED", where)

    def _compare_message(self, original: DescriptorProto, update: DescriptorProto, path: str) -> None:
        before = {field.number: field for field in original.field}
        after = {field.number: field for field in update.field}
        self._compare_oneofs(original, update, path)
        for number in sorted(before.keys() | after.keys()):
            old, new, where = before.get(number), after.get(number), f"{path}/{number}"
            if old is not None and new is not None:
                self._compare_field(old, new, where)
            elif old is not None and old.label == FieldDescriptorProto.LABEL_REQUIRED:
                self.add_fault("REQUIRED_FIELD_REMOVED", where)
            elif new is not None and new.label == FieldDescriptorProto.LABEL_REQUIRED:
                self.add_fault("REQUIRED_FIELD_ADDED", where)

    def _compare_oneofs(self, original: DescriptorProto, update: DescriptorProto, path: str) -> None:
        before, after = _oneofs(original), _oneofs(update)
        in_oneof = {number for numbers in before.values() for number in numbers}
        alone = {field.number for field in original.field} - in_oneof
        for name, numbers in after.items():
            moved = alone & numbers
            if len(moved) > 1:
                self.add_fault("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{name}")
            elif moved and in_oneof & numbers:
                self.add_fault("FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}/{name}")
        for name, numbers in before.items():
            for number in sorted(numbers - after.get(name, numbers)):
                self.add_fault("ONEOF_FIELD_REMOVED", f"{path}/{name}/{number}")

    def _compare_field(self, old: FieldDescriptorProto, new: FieldDescriptorProto, path: str) -> None:
        old_entry, new_entry = self._entry(old, self._original), self._entry(new, self._update)
        kinds = _kind(old, old_entry), _kind(new, new_entry)
        if kinds[0] != kinds[1]:
            self.add_fault("FIELD_KIND_CHANGED", path)
        elif old_entry is not None and new_entry is not None:
            for one, other in zip(old_entry.field, new_entry.field, strict=True):
                self._compare_field(one, other, path)
        elif kinds[0] == "message":
            self._compare_types(old.type_name, new.type_name, path)
        elif GROUP_OF[SCALARS[old.type]] != GROUP_OF[SCALARS[new.type]]:
            self.add_fault("FIELD_SCALAR_KIND_CHANGED", path)

    def _entry(self, field: FieldDescriptorProto, side: Side) -> DescriptorProto | None:
        found = side.messages.get(field.type_name)
        return found[0] if found is not None and found[0].options.map_entry else None

    def _compare_types(self, old: str, new: str, path: str) -> None:
        """Compare the messages of two fields: by their names within the package, then by their fields."""
        before, after = self._original.messages.get(old), self._update.messages.get(new)
        if before is None or after is None:
            if old != new:
                self.add_fault("FIELD_NAMED_TYPE_CHANGED", path)
        elif old.removeprefix(f".{before[1]}") != new.removeprefix(f".{after[1]}"):
            self.add_fault("FIELD_NAMED_TYPE_CHANGED", path)
        elif (old, new) not in self._compared:
            self._compared.add((old, new))
            count = len(self.faults)
            self._compare_message(before[0], after[0], path)
            if len(self.faults) > count:
                self.add_fault("FIELD_NAMED_TYPE_CHANGED", path)


def _oneofs(message: DescriptorProto) -> dict[str, set[int]]:
    """Collect the numbers of fields by their oneof, without the oneofs that ``optional`` creates."""
    found: dict[str, set[int]] = {}
    for field in message.field:
        if field.HasField("oneof_index") and not field.proto3_optional:
            found.setdefault(message.oneof_decl[field.oneof_index].name, set()).add(field.number)
    return found


def _kind(field: FieldDescriptorProto, entry: DescriptorProto | None) -> str:
    if entry is not None:
        return "map"
    is_message = field.type in (FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_GROUP)
    return "message" if is_message else "scalar"
