"""Avro schemas whose values may be larger or deeper than their bytes let expect.

An array of items that take no byte, such as nulls, has as many as four bytes say: 2 GB of a value of 9 bytes. A type
that contains itself is read by calls within calls, for which a thread's stack may be too small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class AvroBounds:
    """Bounds of one schema, as fastavro parses it; ``named`` has its named types by their whole names."""

    def __init__(self, parsed: Any, named: Mapping[str, Any]) -> None:
        self._named = named
        self._done: set[str] = set()
        self.has_free_items = False
        self.is_recursive = False
        self._walk(parsed, ())

    def _walk(self, node: Any, around: tuple[str, ...]) -> None:
        if isinstance(node, list):
            for one in node:
                self._walk(one, around)
        elif isinstance(node, str):
            if node not in PRIMITIVES:
                self._walk_named(node, around)
        elif node["type"] in ("record", "error"):
            self._walk_named(node["name"], around)
        elif node["type"] in ("array", "map"):
            inner = node.get("items", node.get("values"))
            self.has_free_items |= node["type"] == "array" and not self._takes_bytes(inner, ())
            self._walk(inner, around)

    def _walk_named(self, name: str, around: tuple[str, ...]) -> None:
        if name in around:
            self.is_recursive = True
        elif name not in self._done:
            for field in self._named[name].get("fields", ()):
                self._walk(field["type"], (*around, name))
            self._done.add(name)

    def _takes_bytes(self, node: Any, around: tuple[str, ...]) -> bool:
        """Return whether each value has at least one byte."""
        if isinstance(node, list):
            return True  # the number of the branch
        if isinstance(node, str):
            if node in PRIMITIVES:
                return node != "null"
            node = self._named[node]
        if node["type"] == "fixed":
            return bool(node["size"])
        if node["type"] not in ("record", "error"):
            return bool(node["type"] != "null")
        name = node["name"]
        inside = (*around, name)
        return name in around or any(self._takes_bytes(one["type"], inside) for one in self._named[name]["fields"])
