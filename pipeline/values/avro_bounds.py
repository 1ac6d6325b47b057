"""The check of Avro schemas for values that are far larger when decoded than their bytes.

Items such as nulls take no bytes, so an array of 6 bytes may decode to 2^31 of them. A record of two records, each of
two records, and so on for thirty levels, decodes to 2^30 nulls from no bytes. A record of 900 nulls that may contain
itself twice decodes to 450 nulls from each byte. A *node* below is a value or any part of it.
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
        self._open: set[str] = set()
        """Records whose excess is being computed. Within itself a record counts 0; if its excess is above 0 even so,
        its values have no bound."""
        self._recursive: set[str] = set()
        """Records that contain themselves."""
        self.is_inflated = self._excess(parsed) > FREE_NODES
        """Whether a value may have more nodes without bytes than NODES_PER_BYTE and FREE_NODES allow."""
        self._walk(parsed)

    def _walk(self, node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                self._walk(one)
        elif isinstance(node, str):
            if node not in PRIMITIVES:
                self._walk_named(node)
        elif node["type"] in RECORDS:
            self._walk_named(node["name"])
        elif node["type"] == "array":
            self.is_inflated |= self._excess(node["items"]) > 0
            self._walk(node["items"])
        elif node["type"] == "map":
            self.is_inflated |= self._excess(node["values"]) > NODES_PER_BYTE  # a key has a byte
            self._walk(node["values"])

    def _walk_named(self, name: str) -> None:
        if name in self._done:
            return
        self._done.add(name)
        for field in self._named[name].get("fields", ()):
            self._walk(field["type"])
        # A value may have any number of records of a type that contains itself, each with this excess.
        self.is_inflated |= name in self._recursive and self._excesses[name] > 0

    def _excess(self, node: Any) -> int:
        """Return the most nodes without bytes that a value of schema ``node`` may have beyond NODES_PER_BYTE for each
        of its bytes."""
        if isinstance(node, list):  # the number of the branch has a byte
            return max(map(self._excess, node), default=0) - NODES_PER_BYTE
        if isinstance(node, str) and node not in PRIMITIVES:
            node = self._named[node]
        kind = node if isinstance(node, str) else node["type"]
        if kind in RECORDS:
            return self._excess_of_record(node["name"])
        return 1 if kind == "null" or (kind == "fixed" and not node["size"]) else -NODES_PER_BYTE

    def _excess_of_record(self, name: str) -> int:
        if name in self._open:
            self._recursive.add(name)
            return 0
        if name not in self._excesses:
            self._open.add(name)
            fields = self._named[name]["fields"]
            self._excesses[name] = 1 + sum(self._excess(field["type"]) for field in fields)
            self._open.remove(name)
        return self._excesses[name]
