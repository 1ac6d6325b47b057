"""The table of formats: which module reads a schema, and which judges changes of it. Any thread."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache

from tidelog.broker.schema_registry.formats.schema import InvalidSchemaError, ParsedSchema, Source

FORMATS = {
    "AVRO": "tidelog.broker.schema_registry.formats.avro",
    "JSON": "tidelog.broker.schema_registry.formats.json_schema",
    "PROTOBUF": "tidelog.broker.schema_registry.formats.protobuf",
}
RULES = {
    "AVRO": "tidelog.broker.schema_registry.compatibility.avro",
    "JSON": "tidelog.broker.schema_registry.compatibility.json_schema",
    "PROTOBUF": "tidelog.broker.schema_registry.compatibility.protobuf",
}
CACHED = 500
"""Schemas whose parsed form is kept."""


@lru_cache(CACHED)
def parse(source: Source) -> ParsedSchema:
    """Read a schema. Raises InvalidSchemaError."""
    module = FORMATS.get(source.schema_type)
    if module is None:
        raise InvalidSchemaError(f"Invalid schema type {source.schema_type}")
    try:
        found: ParsedSchema = importlib.import_module(module).parse(source)
    except ImportError as error:
        raise InvalidSchemaError(f"{error.name} is missing (pip install tidelog[registry])") from error
    return found


def reading_faults(reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
    """Reasons why data of ``writer`` cannot be read by ``reader``; none where it can."""
    if reader.source.schema_type != writer.source.schema_type:
        return ["Incompatible because of different schema type"]
    rules = importlib.import_module(RULES[reader.source.schema_type])
    judge: Callable[[ParsedSchema, ParsedSchema], list[str]] = rules.reading_faults
    return judge(reader, writer)
