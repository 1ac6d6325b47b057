"""The check of Avro schemas for values that are far larger or deeper when decoded than their bytes.

Items such as nulls take no bytes, so an array of 6 bytes may decode to 2^31 of them. A record of two records, each of
two records, and so on for thirty levels, decodes to 2^30 nulls from no bytes. A type that contains itself is read by
recursive calls, for which a thread's stack may be too small. A *node* below is a value or any part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
RECORDS = ("record", "error")
NODES_PER_BYTE = 16
"""Nodes without bytes (nulls, empty and nested records) that are allowed for each byte of a value."""
FREE_NODES = 1000
"""Nodes without bytes that any value may have in addition."""


class AvroBounds:
    """Bounds of one schema, as fastavro parses it; ``named`` has its named types by full name."""

    def __init__(self, parsed: Any, named: Mapping[str, Any]) -> None:
        self._named = named
        self._done: set[str] = set()
        self._excesses: dict[str, int] = {}
        self.is_recursive = False
        self.is_inflated = self._excess(parsed) > FREE_NODES
        """Whether few bytes may decode to any number of items or fields."""
        self._walk(parsed, ())

    def _walk(self, node: Any, around: tuple[str, ...]) -> None:
        if isinstance(node, list):
            for one in node:
                self._walk(one, around)
        elif isinstance(node, str):
            if node not in PRIMITIVES:
                self._walk_named(node, around)
        elif node["type"] in RECORDS:
            self._walk_named(node["name"], around)
        elif node["type"] == "array":
            self.is_inflated |= self._excess(node["items"]) > 0
            self._walk(node["items"], around)
        elif node["type"] == "map":
            self.is_inflated |= self._excess(node["values"]) > NODES_PER_BYTE  # a key has a byte
            self._walk(node["values"], around)

    def _walk_named(self, name: str, around: tuple[str, ...]) -> None:
        if name in around:
            self.is_recursive = True
        elif name not in self._done:
            for field in self._named[name].get("fields", ()):
                self._walk(field["type"], (*around, name))
            self._done.add(name)

    def _excess(self, node: Any) -> int:
        """Return the most nodes without bytes that a value may have beyond NODES_PER_BYTE for each of its bytes."""
        if isinstance(node, list):  # the number of the branch has a byte
            return max(map(self._excess, node), default=0) - NODES_PER_BYTE
        if isinstance(node, str) and node not in PRIMITIVES:
            node = self._named[node]
        kind = node if isinstance(node, str) else node["type"]
        if kind in RECORDS:
            return self._excess_of_record(node["name"])
        return 1 if kind == "null" or (kind == "fixed" and not node["size"]) else -NODES_PER_BYTE

    def _excess_of_record(self, name: str) -> int:
        if name not in self._excesses:
            self._excesses[name] = 0  # for a record that contains itself
            fields = self._named[name]["fields"]
            self._excesses[name] = 1 + sum(self._excess(field["type"]) for field in fields)
        return self._excesses[name]
