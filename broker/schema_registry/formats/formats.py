"""Table of formats: the module that parses a schema, and the one with the rules of compatibility. Any thread."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

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
MAX_KEPT = 4 << 20
"""Largest number of characters of the schemas whose parsed forms are kept; these take at least ten times as many
bytes."""
MAX_CHARACTERS = 16 << 20
"""Largest number of characters of a schema and all schemas that it refers to: nested references may name a large one
many times."""


class ParsedSchemas:
    """Cache of the parsed schemas that were used last, up to ``max_characters`` of their texts. Any thread."""

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._lock = Lock()
        self._kept: OrderedDict[Source, ParsedSchema] = OrderedDict()
        self.characters = 0

    def get(self, source: Source) -> ParsedSchema | None:
        """Return the parsed form; None if it is not kept."""
        with self._lock:
            found = self._kept.get(source)
            if found is not None:
                self._kept.move_to_end(source)
            return found

    def keep(self, source: Source, parsed: ParsedSchema) -> None:
        """Keep a parsed form, and drop the least recently used ones."""
        with self._lock:
            if source not in self._kept:
                self._kept[source] = parsed
                self.characters += characters_of(source)
            while self.characters > self._max_characters:
                dropped, _ = self._kept.popitem(last=False)
                self.characters -= characters_of(dropped)


_CACHE = ParsedSchemas(MAX_KEPT)


def characters_of(source: Source) -> int:
    """Return the characters of a schema and of all that it refers to."""
    return len(source.text) + sum(len(name) + len(text) for name, text in source.references)


def parse(source: Source) -> ParsedSchema:
    """Return the parsed form of a schema, from the cache if it is there. Raises InvalidSchemaError."""
    found = _CACHE.get(source)
    if found is None:
        found = parse_uncached(source)
        _CACHE.keep(source, found)
    return found


def parse_uncached(source: Source) -> ParsedSchema:
    """Parse a schema. Raises InvalidSchemaError."""
    if characters_of(source) > MAX_CHARACTERS:
        raise InvalidSchemaError(f"the schema has more than {MAX_CHARACTERS} characters with all that it refers to")
    check_characters(source.text, *(name for name, _ in source.references))
    module = FORMATS.get(source.schema_type)
    if module is None:
        raise InvalidSchemaError(f"Invalid schema type {source.schema_type}")
    try:
        found: ParsedSchema = importlib.import_module(module).parse(source)
    except ImportError as error:
        raise InvalidSchemaError(f"{error.name} is missing (pip install tidelog[registry])") from error
    check_characters(found.canonical)
    return found


def check_characters(*texts: str) -> None:
    """Raise InvalidSchemaError for a lone surrogate, which JSON can have and UTF-8 cannot encode."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError(f"it has a lone surrogate, U+{ord(error.object[error.start]):04X}") from None


def reading_faults(reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
    """Collect reasons why data of ``writer`` cannot be read by ``reader``; none if it can."""
    if reader.source.schema_type != writer.source.schema_type:
        return ["Incompatible because of different schema type"]
    rules = importlib.import_module(RULES[reader.source.schema_type])
    compare: Callable[[ParsedSchema, ParsedSchema], list[str]] = rules.reading_faults
    return compare(reader, writer)
