"""Avro's JSON form: conversion between the Python values of fastavro and JSON, by the schema.

    bytes, fixed     text with one character for each byte
    a union          null, or an object that names the branch: {"string": "a"}
    NaN, infinities  text, as Avro's own library writes them

fastavro's own JSON form takes the first branch of a union that fits, and drops unknown fields of a nested record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tidelog.pipeline.values.avro_bounds import RECORDS

_NUMBERS = {"int": 31, "long": 63}
_TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BRANCHES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",), int: ("long", "int"), float: ("double", "float"), str: ("string",), bytes: ("bytes",),
    list: ("array",), dict: ("map",),
}  # fmt: skip
"""Python type of a value from fastavro -> branches of a union that it may be of. Named types come with their names."""


class AvroJson:
    """Conversion from and to the JSON form, by a schema as fastavro parses it; ``named`` has its named types by full
    name."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named

    def json_of(self, node: Any, datum: Any) -> Any:
        """Convert a value from fastavro to JSON."""
        if isinstance(node, list):
            return self._json_of_union(node, datum)
        kind, node = self._kind(node)
        if kind in RECORDS:
            return {one["name"]: self.json_of(one["type"], datum[one["name"]]) for one in node["fields"]}
        if kind == "array":
            return [self.json_of(node["items"], one) for one in datum]
        if kind == "map":
            return {key: self.json_of(node["values"], one) for key, one in datum.items()}
        if kind in ("bytes", "fixed"):
            return datum.decode("latin-1")
        if kind in ("float", "double") and not math.isfinite(datum):
            return next(text for text, number in _TEXTS.items() if str(number) == str(datum))
        return datum

    def _json_of_union(self, node: list[Any], datum: Any) -> Any:
        if datum is None:
            return None
        branches = {self._label(one): one for one in node}
        if isinstance(datum, tuple):
            name, datum = datum
        else:
            name = next(one for one in _BRANCHES[type(datum)] if one in branches)
        return {name: self.json_of(branches[name], datum)}

    def datum_of(self, node: Any, value: Any) -> Any:
        """Convert JSON to a value for fastavro. Raises ValueError or OverflowError if the JSON does not match."""
        if isinstance(node, list):
            return self._datum_of_union(node, value)
        kind, node = self._kind(node)
        if kind in RECORDS:
            return self._datum_of_record(node, _require_type(dict, value, node["name"]))
        if kind == "array":
            return [self.datum_of(node["items"], one) for one in _require_type(list, value, "an array")]
        if kind == "map":
            return {key: self.datum_of(node["values"], one) for key, one in _require_type(dict, value, "a map").items()}
        return _SIMPLE[kind](kind, node, value)

    def _datum_of_union(self, node: list[Any], value: Any) -> Any:
        branches = {self._label(one): one for one in node}
        if value is None and "null" in branches:
            return None
        if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in branches:
            raise ValueError(f"expected an object that names one of {', '.join(branches)}, found {_shorten(value)}")
        ((name, inner),) = value.items()
        return name, self.datum_of(branches[name], inner)

    def _datum_of_record(self, node: Any, value: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(value) - {one["name"] for one in node["fields"]})
        if unknown:
            raise ValueError(f"{node['name']} has no field {unknown[0]!r}")
        return {one["name"]: self._field(node, one, value) for one in node["fields"]}

    def _field(self, node: Any, field: Any, value: dict[str, Any]) -> Any:
        name, kind = field["name"], field["type"]
        if name in value:
            return self.datum_of(kind, value[name])
        if "default" not in field:
            raise ValueError(f"{node['name']} needs the field {name!r}")
        return self.datum_of(kind, self._name_branches(kind, field["default"]))

    def _name_branches(self, kind: Any, default: Any) -> Any:
        """Return a default with the names of branches in its unions: it has values of first branches, without names."""
        if isinstance(kind, list):
            first, value = self._label(kind[0]), self._name_branches(kind[0], default)
            return value if first == "null" else {first: value}
        name, node = self._kind(kind)
        if name == "array" and isinstance(default, list):
            return [self._name_branches(node["items"], one) for one in default]
        if name == "map" and isinstance(default, dict):
            return {key: self._name_branches(node["values"], one) for key, one in default.items()}
        if name in ("record", "error") and isinstance(default, dict):
            kinds = {one["name"]: one["type"] for one in node["fields"]}
            return {key: self._name_branches(kinds.get(key, "null"), one) for key, one in default.items()}
        return default

    def _kind(self, node: Any) -> tuple[str, Any]:
        node = self._named.get(node, node) if isinstance(node, str) else node
        return (node, node) if isinstance(node, str) else (node["type"], node)

    def _label(self, node: Any) -> str:
        kind, node = self._kind(node)
        return str(node.get("name", kind)) if isinstance(node, dict) else kind


def _require_type(kind: type, value: Any, what: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected {what}, found {_shorten(value)}")
    return value


def _shorten(value: Any) -> str:
    return repr(value)[:60]


def _number(kind: str, _node: Any, value: Any) -> int:
    bound = 1 << _NUMBERS[kind]
    if not -bound <= _require_type(int, value, f"a number of type {kind}") < bound:
        raise ValueError(f"{value} is too large for {kind}")
    return int(value)


def _float(kind: str, _node: Any, value: Any) -> float:
    if isinstance(value, str) and value in _TEXTS:
        return _TEXTS[value]
    return float(value if type(value) is int else _require_type(float, value, f"a number of type {kind}"))


def _bytes(kind: str, node: Any, value: Any) -> bytes:
    found: bytes = _require_type(str, value, kind).encode("latin-1")
    if kind == "fixed" and len(found) != node["size"]:
        raise ValueError(f"{node['name']} has {node['size']} bytes, found {len(found)}")
    return found


def _enum(_kind: str, node: Any, value: Any) -> Any:
    if value not in node["symbols"]:
        raise ValueError(f"{node['name']} has no symbol {_shorten(value)}")
    return value


_SIMPLE: dict[str, Callable[[str, Any, Any], Any]] = {
    "null": lambda kind, _node, value: _require_type(type(None), value, kind),
    "boolean": lambda kind, _node, value: _require_type(bool, value, f"a {kind}"),
    "string": lambda kind, _node, value: _require_type(str, value, f"a {kind}"),
    "int": _number, "long": _number, "float": _float, "double": _float,
    "bytes": _bytes, "fixed": _bytes, "enum": _enum,
}  # fmt: skip
