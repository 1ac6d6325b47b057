"""JSON Schema, checked by jsonschema, and written without spaces, with its fields in their original order.

``ParsedSchema.model`` has the document as ``root``, and the documents that it refers to by their names in
``documents``. ``$schema`` names the draft; without it, or with another than 4, 6, 7, 2019-09 and 2020-12, draft 7
applies, as in Confluent's registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft3Validator, Draft7Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from tidelog.broker.schema_registry.formats.schema import (
    InvalidSchemaError,
    ParsedSchema,
    Source,
    compact,
    parse_json,
)

DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are data, in which ``$ref`` is an ordinary name."""


def parse(source: Source) -> ParsedSchema:
    """Read a schema. Raises InvalidSchemaError."""
    root = parse_json(source.text)
    if not isinstance(root, dict | bool):
        raise InvalidSchemaError("a JSON schema must be an object or a boolean")
    if isinstance(root, dict) and not isinstance(root.get("$schema", ""), str):
        raise InvalidSchemaError("$schema must be a string")
    try:
        draft = validator_for(root, default=Draft7Validator)
        (Draft7Validator if draft is Draft3Validator else draft).check_schema(root)
    except SchemaError as error:
        raise InvalidSchemaError(f"{error.message} at {error.json_path}") from None
    except RecursionError:
        raise InvalidSchemaError("it is nested too deeply") from None
    documents = {name: parse_json(text) for name, text in source.references}
    for reference in references_in(root):
        if resolve(reference, root, documents) is None:
            raise InvalidSchemaError(f"the $ref {reference} has no target")
    canonical = compact(root)
    model = {"root": root, "documents": documents}
    return ParsedSchema(source, canonical, canonical, model, compact(root, is_sorted=True))


def references_in(node: Any) -> Iterator[str]:
    """Yield the values of all ``$ref`` in a document."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if isinstance(one.get("$ref"), str):
                yield one["$ref"]
            waiting += [each for name, each in one.items() if name not in DATA_KEYWORDS]
        elif isinstance(one, list):
            waiting += one


def resolve(reference: str, document: Any, documents: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the target of a ``$ref`` in a document, and the target's document; None if there is none."""
    name, _, pointer = reference.partition("#")
    if name and not (isinstance(document, dict) and document.get("$id") == name):
        document = documents.get(name)
        if document is None:
            return None
    node = document
    for part in unquote(pointer).split("/")[1:] if pointer.startswith("/") else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    if pointer and not pointer.startswith("/"):
        node = _find_anchor(document, pointer)
    return None if node is None else (node, document)


def _find_anchor(document: Any, name: str) -> Any:
    waiting = [document]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if name in (one.get("$anchor"), str(one.get("$id")).removeprefix("#")):
                return one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return None
