"""Avro schemas, read by fastavro and written as Avro's own ``Schema.toString`` writes them.

The text has attributes in a fixed order, names relative to the enclosing namespace, and no spaces. Documentation and
attributes that Avro does not know are kept. ``ParsedSchema.model`` has the schema with full names as ``root``, and all
named types by full name as ``types``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from tidelog.broker.schema_registry.formats.schema import (
    InvalidSchemaError,
    ParsedSchema,
    Source,
    compact,
    parse_json,
)

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
MAX_NAME = 1_000
"""Largest number of characters of a name with its namespace: each use of a type is replaced by its full name, so that a
schema of 1 MiB with a long namespace would take gigabytes."""
_ORDERS = {
    "record": ("doc", "fields"),
    "error": ("doc", "fields"),
    "enum": ("doc", "symbols", "default"),
    "fixed": ("doc", "size"),
    "array": ("items",),
    "map": ("values",),
}
_FIELD_ORDER = ("name", "type", "doc", "default", "order")
_OWN = frozenset({"type", "name", "namespace", "aliases"})
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MALFORMED = (SchemaParseException, KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError,
              OverflowError)  # fmt: skip


def parse(source: Source) -> ParsedSchema:
    """Parse a schema. Raises InvalidSchemaError."""
    node = parse_json(source.text)
    check_names(node)
    named: dict[str, Any] = {}
    try:
        for _, text in source.references:
            fastavro.parse_schema(parse_json(text), named_schemas=named)
        fastavro.parse_schema(node, named_schemas=named)
        types: dict[str, Any] = {}
        for _, text in source.references:
            qualify_names(parse_json(text), "", types)
        root = qualify_names(node, "", types)
        canonical = compact(Writer().write(node, ""))
        normalized = compact(Writer(is_sorted=True).write(node, ""))
    except _MALFORMED as error:
        raise InvalidSchemaError(f"{error or type(error).__name__} ({type(error).__name__})") from error
    return ParsedSchema(source, canonical, canonical, {"root": root, "types": types}, normalized)


def check_names(node: Any) -> None:
    """Raise InvalidSchemaError for a named type whose name and namespace are too long together."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
            kind, names = one.get("type"), f"{one.get('namespace', '')}{one.get('name', '')}"
            if isinstance(kind, str) and kind in NAMED and len(names) > MAX_NAME:
                raise InvalidSchemaError(f"a name has more than {MAX_NAME} characters with its namespace")


def full_name(name: str, namespace: str) -> str:
    """Return a name with its namespace."""
    return name if "." in name or not namespace or name in PRIMITIVES else f"{namespace}.{name}"


def name_of(node: dict[str, Any], space: str) -> str:
    """Return the full name of a named type in a namespace."""
    return full_name(node["name"], node.get("namespace", space))


def space_of(name: str) -> str:
    """Return the namespace of a full name."""
    return name.rpartition(".")[0]


def qualify_names(node: Any, space: str, types: dict[str, Any]) -> Any:
    """Return the schema with full names. Definitions of named types go to ``types``, and their full names replace them
    in the schema. Raises SchemaParseException."""
    if isinstance(node, str):
        return full_name(node, space)
    if isinstance(node, list):
        return _union([qualify_names(one, space, types) for one in node])
    kind = node["type"]
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return {"type": kind, inner: qualify_names(node[inner], space, types)}
    if kind not in NAMED:
        return full_name(kind, space)
    name = name_of(node, space)
    if name in types or not _NAME.fullmatch(name):
        raise SchemaParseException(f"Can't redefine: {name}" if name in types else f"Illegal name: {name}")
    inside = space_of(name)
    found = {**node, "type": "record" if kind == "error" else kind, "name": name}
    types[name] = found
    if kind in ("record", "error"):
        found["fields"] = [
            {**one, "type": qualify_names(one["type"], inside, types)} for one in _check_fields(node["fields"])
        ]
    found["aliases"] = [full_name(one, inside) for one in node.get("aliases", ())]
    return name


def _union(branches: list[Any]) -> list[Any]:
    """Check that no branch is a union, and no two are of the same type or name. Raises SchemaParseException."""
    kinds = [one if isinstance(one, str) else "union" if isinstance(one, list) else one["type"] for one in branches]
    if "union" in kinds:
        raise SchemaParseException("Nested union")
    if len(set(kinds)) < len(kinds):
        raise SchemaParseException("Duplicate in union")
    return branches


def _check_fields(fields: list[Any]) -> list[Any]:
    """Check the names of a record's fields. Raises SchemaParseException."""
    names = Counter(one["name"] for one in fields)
    for name, count in names.items():
        if "." in name or not _NAME.fullmatch(name):
            raise SchemaParseException(f"Illegal name: {name}")
        if count > 1:
            raise SchemaParseException(f"Duplicate field {name}")
    return fields


class Writer:
    """Writer of a schema with its attributes in Avro's order; those that Avro does not know keep their order.

    With ``is_sorted`` the unknown attributes, their contents, aliases and the contents of defaults are in alphabetical
    order. An empty ``doc`` of a named type and a decimal's scale of 0 are then omitted, as in Confluent's registry.
    """

    def __init__(self, *, is_sorted: bool = False) -> None:
        self._is_sorted = is_sorted

    def _foreign_attributes(self, node: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
        """Return the attributes that are not in ``known``."""
        names = [name for name in node if name not in known]
        if not self._is_sorted:
            return {name: node[name] for name in names}
        if node.get("logicalType") == "decimal" and node.get("scale") == 0:
            names.remove("scale")
        return {name: sort_names(node[name]) for name in sorted(names)}

    def _aliases(self, names: list[str]) -> list[str]:
        return sorted(set(names)) if self._is_sorted else names

    def write(self, node: Any, space: str) -> Any:
        """Return the node in the form in which it is written in a namespace."""
        if isinstance(node, str):
            return _relative(full_name(node, space), space)
        if isinstance(node, list):
            return [self.write(one, space) for one in node]
        kind = node["type"]
        if kind in NAMED:
            return self._write_named(node, kind, space)
        others = self._foreign_attributes(node, ("type", "items", "values"))
        if kind in ("array", "map"):
            inner = _ORDERS[kind][0]
            return {"type": kind, inner: self.write(node[inner], space), **others}
        name = _relative(full_name(kind, space), space)
        return {"type": name, **others} if others and kind in PRIMITIVES else name

    def _write_named(self, node: dict[str, Any], kind: str, space: str) -> Any:
        name = name_of(node, space)
        inside = space_of(name)
        found: dict[str, Any] = {"type": kind, "name": name.rpartition(".")[2]}
        if inside != space:
            found["namespace"] = inside
        for attribute in _ORDERS[kind]:
            if attribute == "fields":
                found["fields"] = [self._write_field(one, inside) for one in node["fields"]]
            elif attribute in node and not (self._is_sorted and attribute == "doc" and not node["doc"]):
                found[attribute] = node[attribute]
        found |= self._foreign_attributes(node, _OWN.union(_ORDERS[kind]))
        if node.get("aliases"):
            found["aliases"] = self._aliases([_relative(full_name(one, inside), inside) for one in node["aliases"]])
        return found

    def _write_field(self, field: dict[str, Any], space: str) -> dict[str, Any]:
        found = {each: field[each] for each in _FIELD_ORDER if each in field}
        found["type"] = self.write(field["type"], space)
        if self._is_sorted and "default" in found:
            found["default"] = sort_names(found["default"])
        if found.get("order") == "ascending":
            del found["order"]
        found |= self._foreign_attributes(field, (*_FIELD_ORDER, "aliases"))
        if field.get("aliases"):
            found["aliases"] = self._aliases(field["aliases"])
        return found


def sort_names(value: Any) -> Any:
    """Return JSON with the names of its objects in alphabetical order."""
    if isinstance(value, dict):
        return {name: sort_names(value[name]) for name in sorted(value)}
    return [sort_names(one) for one in value] if isinstance(value, list) else value


def _relative(name: str, space: str) -> str:
    """Return a full name in the form in which it is written in a namespace."""
    return name.removeprefix(f"{space}.") if space and space_of(name) == space else name
