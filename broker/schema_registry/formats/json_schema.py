"""JSON Schema, checked by jsonschema, and written without spaces, with its fields in their original order.

``ParsedSchema.model`` has the document as ``root``, and those that it refers to as ``documents`` (``Documents``).
``$schema`` names the draft; without it, or with another than 4, 6, 7, 2019-09 and 2020-12, draft 7 applies, as in
Confluent's registry.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft3Validator, Draft4Validator, Draft7Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from tidelog.broker.schema_registry.formats.schema import (
    InvalidSchemaError,
    ParsedSchema,
    Source,
    compact,
    parse_json,
)

_INDEX = re.compile(r"[0-9]{1,9}")
"""Index of a list in a JSON pointer: ASCII digits (RFC 6901); no list has an index of more than nine."""
MAX_MIXED = 1_000
"""Largest number of elements that cannot be sorted, such as objects, in a list whose elements must be distinct:
jsonschema compares each of them with each other one."""
_DISTINCT = frozenset({"type", "required"})
"""Keywords whose lists must have distinct elements in all drafts; in draft 4 those of ``enum`` must, too."""
_DISTINCT_INSIDE = frozenset({"dependencies", "dependentRequired"})
DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are data, in which ``$ref`` is an ordinary name."""
NAME_KEYWORDS = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}
)
"""Keywords whose values map names to schemas; such a name, for example a property's, may equal a keyword."""


def parse(source: Source) -> ParsedSchema:
    """Read a schema. Raises InvalidSchemaError."""
    root = parse_json(source.text)
    if not isinstance(root, dict | bool):
        raise InvalidSchemaError("a JSON schema must be an object or a boolean")
    if isinstance(root, dict) and not isinstance(root.get("$schema", ""), str):
        raise InvalidSchemaError("$schema must be a string")
    try:
        draft = validator_for(root, default=Draft7Validator)
        check_lists(root, _DISTINCT | {"enum"} if draft is Draft4Validator else _DISTINCT)
        (Draft7Validator if draft is Draft3Validator else draft).check_schema(root)
    except SchemaError as error:
        raise InvalidSchemaError(f"{error.message[:500]} at {error.json_path[:500]}") from None
    except RecursionError:
        raise InvalidSchemaError("it is nested too deeply") from None
    except (OverflowError, ValueError) as error:  # of a pattern's repetition, or of a URL
        raise InvalidSchemaError(str(error)[:500]) from None
    documents = Documents({name: parse_json(text) for name, text in source.references})
    for reference in references_in(root):
        if documents.resolve(reference, root) is None:
            raise InvalidSchemaError(f"the $ref {reference} has no target")
    canonical = compact(root)
    model = {"root": root, "documents": documents}
    return ParsedSchema(source, canonical, canonical, model, compact(root, is_sorted=True))


def check_lists(root: Any, distinct: Container[str]) -> None:
    """Raise InvalidSchemaError for a list that takes too long to check, as its elements cannot be sorted. ``distinct``
    are the keywords whose lists are checked for equal elements."""
    for one in objects_in(root):
        for name, value in one.items():
            inner = value.values() if name in _DISTINCT_INSIDE and isinstance(value, dict) else ()
            if any(map(is_long_mixture, (value,) if name in distinct else inner)):
                raise InvalidSchemaError(f"{name} has a list of more than {MAX_MIXED} elements that cannot be sorted")


def is_long_mixture(value: Any) -> bool:
    """Return whether this is a list of more than MAX_MIXED elements that cannot be sorted."""
    if not isinstance(value, list) or len(value) <= MAX_MIXED:
        return False
    try:
        sorted(value)
    except TypeError:
        return True
    return False


def objects_in(document: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a document."""
    waiting = [document]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def references_in(document: Any) -> Iterator[str]:
    """Yield the values of all ``$ref`` in a document, except those in data."""
    waiting = [(document, False)]
    while waiting:
        one, has_names = waiting.pop()
        if isinstance(one, list):
            waiting += [(each, False) for each in one]
        elif isinstance(one, dict) and has_names:
            waiting += [(each, False) for each in one.values()]
        elif isinstance(one, dict):
            if isinstance(one.get("$ref"), str):
                yield one["$ref"]
            waiting += [(each, name in NAME_KEYWORDS) for name, each in one.items() if name not in DATA_KEYWORDS]


class Documents:
    """Documents that a schema refers to, by their names, and the look-up of ``$ref``. Any thread."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.named = named
        self._anchors: dict[int, tuple[Any, dict[str, Any]]] = {}
        """Identity of a document in which an anchor was looked up -> the document, and its schemas by anchor."""

    def resolve(self, reference: str, document: Any) -> tuple[Any, Any] | None:
        """Return the target of a ``$ref`` in a document, and the target's document; None if there is none."""
        name, _, pointer = reference.partition("#")
        if name and not (isinstance(document, dict) and document.get("$id") == name):
            document = self.named.get(name)
        if not pointer or document is None:
            node = document
        elif pointer.startswith("/"):
            node = follow_pointer(document, pointer)
        else:
            node = self._anchors_of(document).get(pointer)
        return None if node is None else (node, document)

    def _anchors_of(self, document: Any) -> dict[str, Any]:
        """Return the schemas of a document by anchor, found once: to search for each reference takes quadratic time."""
        found = self._anchors.get(id(document))
        if found is None:
            found = self._anchors[id(document)] = (document, anchors_in(document))
        return found[1]


def follow_pointer(document: Any, pointer: str) -> Any:
    """Return the part of a document that a JSON pointer names; None if there is none."""
    node = document
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and _INDEX.fullmatch(key) and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def anchors_in(document: Any) -> dict[str, Any]:
    """Return the schemas in a document by their anchors, ``$anchor`` or an ``$id`` such as ``#name``."""
    found: dict[str, Any] = {}
    for one in objects_in(document):
        for name in (one.get("$anchor"), one.get("$id")):
            if isinstance(name, str):
                found.setdefault(name.removeprefix("#"), one)
    return found
