"""Records of the topic ``_schemas`` in the form of Confluent's registry: JSON keys and values.

    keytype         key                                     value                                   no value
    SCHEMA          keytype, subject, version, magic 1      subject, version, id, ..., deleted      deleted permanently
    CONFIG          keytype, subject or null, magic 0       subject, compatibilityLevel             not set
    MODE            keytype, subject or null, magic 0       subject, mode                           not set
    DELETE_SUBJECT  keytype, subject, magic 0               subject, version                        -
    NOOP            magic 0, keytype                        lastId                                  -
    NOOP            keytype, magic 0                        none: Confluent's                       -

Compaction compares the bytes of keys, so their fields are in Confluent's order. Unknown fields of a schema's value
(``metadata``, ``ruleSet``) are kept. ``lastId`` is Tidelog's own field: the greatest id that was assigned. It is
known even after the schema with that id was deleted permanently, or replaced. Confluent's registry reads a key as JSON,
in any order, and ignores the value of a NOOP. It writes NOOPs without a value itself. Their keys have the other order,
so compaction keeps the last id beside them. Source: Confluent's SchemaRegistryKey, its serializer and its values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from tidelog.broker.schema_registry.contexts import context_in, qualify, written_in
from tidelog.protocol.foreign_text import decode_json

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
SCHEMA_TYPES = (JSON, PROTOBUF, AVRO)
"""Types of schemas, in the order in which Confluent's registry lists them."""

LAST_ID = "lastId"


class Reference(NamedTuple):
    """A reference of one schema to another: the name that the referring text uses, and the version of a subject."""

    name: str
    subject: str
    version: int


class KeyType(Enum):
    """Kinds of records that the registry knows."""

    SCHEMA = "SCHEMA"
    CONFIG = "CONFIG"
    MODE = "MODE"
    DELETE_SUBJECT = "DELETE_SUBJECT"
    NOOP = "NOOP"


class Key(NamedTuple):
    """A record's key. ``subject`` is None for a setting of the whole registry; only SCHEMA has a version."""

    kind: KeyType
    subject: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    text: str
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    deleted: bool = False
    others: tuple[tuple[str, Any], ...] = ()
    """Unknown fields, which are kept."""

    @property
    def content(self) -> tuple[object, ...]:
        """The part that determines a schema's id: equal content gets one id in all subjects, unless it is imported with
        another."""
        return self.schema_type, self.text, self.references


class StoredRecord(NamedTuple):
    """A record of the topic, to be written or read."""

    key: Key
    value: Mapping[str, Any] | None


class MalformedRecordError(Exception):
    """A record that is not in the registry's form."""


def encode_key(key: Key) -> bytes:
    """Encode a key as JSON, with its fields in Confluent's order; that of a NOOP in the other order."""
    if key.kind is KeyType.NOOP:
        return to_bytes({"magic": 0, "keytype": key.kind.value})
    fields: dict[str, Any] = {"keytype": key.kind.value, "subject": key.subject}
    if key.kind is KeyType.SCHEMA:
        fields["version"] = key.version
    return to_bytes({**fields, "magic": 1 if key.kind is KeyType.SCHEMA else 0})


def decode_key(data: bytes) -> Key | None:
    """Return the key; None for one of an unknown kind. Raises MalformedRecordError."""
    fields = _object(data)
    try:
        kind = KeyType(fields.get("keytype"))
    except ValueError:
        return None
    subject, version = fields.get("subject"), fields.get("version", 0)
    needs_subject = kind in (KeyType.SCHEMA, KeyType.DELETE_SUBJECT)
    if not isinstance(subject, str if needs_subject else str | None) or type(version) is not int:
        raise MalformedRecordError(f"the key {data[:200]!r}")
    return Key(kind, subject, version)


def decode_value(data: bytes | None) -> Mapping[str, Any] | None:
    """Return the fields of a value. Raises MalformedRecordError."""
    return None if data is None else _object(data)


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = decode_json(data)
    except ValueError as error:
        raise MalformedRecordError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedRecordError("not a JSON object")
    return found


def to_bytes(value: Any) -> bytes:
    """Write JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


_KNOWN = frozenset({"subject", "version", "id", "schema", "schemaType", "references", "deleted"})


def schema_of(value: Mapping[str, Any]) -> RegisteredSchema:
    """Return the schema of a SCHEMA record. Raises MalformedRecordError."""
    try:
        context = context_in(str(value["subject"]))
        references = tuple(
            Reference(str(one["name"]), qualify(str(one["subject"]), context), int(one["version"]))
            for one in value.get("references") or ()
        )
        return RegisteredSchema(
            subject=str(value["subject"]),
            version=int(value["version"]),
            id=int(value["id"]),
            text=str(value["schema"]),
            schema_type=str(value.get("schemaType") or AVRO),
            references=references,
            deleted=bool(value.get("deleted", False)),
            others=tuple((name, one) for name, one in value.items() if name not in _KNOWN),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MalformedRecordError(f"the schema {str(value)[:200]}: {error!r}") from error


def schema_record(schema: RegisteredSchema) -> StoredRecord:
    """Return the record of a schema; Avro's type and empty references are omitted, as in Confluent's registry."""
    value: dict[str, Any] = {"subject": schema.subject, "version": schema.version, "id": schema.id}
    value.update(schema.others)
    value.update(type_and_references(schema))
    value["schema"] = schema.text
    value["deleted"] = schema.deleted
    return StoredRecord(Key(KeyType.SCHEMA, schema.subject, schema.version), value)


def type_and_references(schema: RegisteredSchema) -> dict[str, Any]:
    """Return the type of a schema, unless it is Avro, and its references, if it has any."""
    found: dict[str, Any] = {}
    if schema.schema_type != AVRO:
        found["schemaType"] = schema.schema_type
    if schema.references:
        context = context_in(schema.subject)
        named = (one._replace(subject=written_in(one.subject, context)) for one in schema.references)
        found["references"] = [one._asdict() for one in named]
    return found


def config_record(subject: str | None, level: str | None) -> StoredRecord:
    """Return the record of a compatibility level; None removes it."""
    return StoredRecord(Key(KeyType.CONFIG, subject), _setting_value(subject, "compatibilityLevel", level))


def mode_record(subject: str | None, mode: str | None) -> StoredRecord:
    """Return the record of a mode; None removes it."""
    return StoredRecord(Key(KeyType.MODE, subject), _setting_value(subject, "mode", mode))


def _setting_value(subject: str | None, name: str, value: str | None) -> Mapping[str, Any] | None:
    if value is None:
        return None
    return {name: value} if subject is None else {"subject": subject, name: value}


def tombstone(subject: str, version: int) -> StoredRecord:
    """Return the record that deletes a version permanently."""
    return StoredRecord(Key(KeyType.SCHEMA, subject, version), None)


def last_id_record(number: int) -> StoredRecord:
    """Return the record that keeps the greatest assigned id when its schema is deleted permanently or replaced."""
    return StoredRecord(Key(KeyType.NOOP), {LAST_ID: number})


def deletion_record(subject: str, version: int) -> StoredRecord:
    """Return the record that softly deletes all versions of a subject up to this one."""
    return StoredRecord(Key(KeyType.DELETE_SUBJECT, subject), {"subject": subject, "version": version})
