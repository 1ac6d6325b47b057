"""Avro's rules: a reader's schema resolves a writer's (Avro specification, "Schema Resolution").

    reader    writer that it may read
    long      int
    float     int, long
    double    int, long, float
    bytes     string
    string    bytes
    union     any type that one of its branches may read
    record    a record with the reader's name or alias; a field of the reader that it lacks must have a default
    enum      an enum with the reader's name or alias; if the reader lacks a symbol of it, the reader needs a default
    fixed     a fixed with the reader's name or alias, and the reader's size

A type reads a union if it reads all branches of the union. Each pair of records or enums is compared once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.broker.schema_registry.compatibility.bounds import MAX_FAULTS, TOO_COMPLEX, TooComplexError, cut
from tidelog.broker.schema_registry.formats.schema import ParsedSchema

MAX_COMPARISONS = 200_000
"""Largest number of pairs of types in one comparison. If the types of two unions all have one name in different
namespaces, each is compared with each."""
PROMOTIONS = {
    ("long", "int"),
    ("float", "int"),
    ("float", "long"),
    ("double", "int"),
    ("double", "long"),
    ("double", "float"),
    ("bytes", "string"),
    ("string", "bytes"),
}
"""Pairs of reader's and writer's types that differ and can be read nevertheless."""


def reading_faults(reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
    """Collect reasons why data of ``writer`` cannot be read by ``reader``."""
    comparison = Comparison(reader.model["types"], writer.model["types"])
    try:
        return comparison.faults(reader.model["root"], writer.model["root"], "/")
    except TooComplexError:
        return [TOO_COMPLEX]


class Comparison:
    """One comparison, with the named types of both sides."""

    def __init__(self, reader_types: dict[str, Any], writer_types: dict[str, Any]) -> None:
        self._reader_types = reader_types
        self._writer_types = writer_types
        self._count = 0
        self._verdicts: dict[tuple[str, str], list[str]] = {}
        """Faults of the pairs of records and enums that were compared; an empty list while a pair is being compared."""
        self._branches: dict[int, dict[str, list[Any]]] = {}
        """Identity of a reader's union -> its branches by name and alias; those without a name under an empty text."""

    def faults(self, reader: Any, writer: Any, path: str) -> list[str]:
        """Collect reasons why ``writer`` cannot be read as ``reader``. Raises TooComplexError."""
        self._count += 1
        if self._count > MAX_COMPARISONS:
            raise TooComplexError
        if isinstance(writer, list):
            return [fault for one in writer for fault in self.faults(reader, one, path)][:MAX_FAULTS]
        if isinstance(reader, list):
            return self._union_faults(reader, writer, path)
        one, other = _expand(reader, self._reader_types), _expand(writer, self._writer_types)
        kind, written = _kind(one), _kind(other)
        if kind != written:
            return (
                []
                if (kind, written) in PROMOTIONS
                else [_fault("TYPE_MISMATCH", path, f"the reader's type {kind} cannot read {written}")]
            )
        compare = _RULES.get(kind)
        return compare(self, one, other, path)[:MAX_FAULTS] if compare is not None else []

    def _union_faults(self, reader: list[Any], writer: Any, path: str) -> list[str]:
        other = _expand(writer, self._writer_types)
        if any(not self.faults(branch, writer, path) for branch in self._find_branches(reader, other)):
            return []
        kind = _kind(other)
        return [_fault("MISSING_UNION_BRANCH", path, f"the reader's union has no branch for {kind}")]

    def _find_branches(self, reader: list[Any], writer: Any) -> list[Any]:
        """Return the branches of a union that may read a type: those with its name or, if it has none, those without
        one. To compare all branches of two unions of some hundred records takes ten thousands of comparisons."""
        known = self._branches.get(id(reader))
        if known is None:
            known = self._branches[id(reader)] = {}
            for branch in reader:
                one = _expand(branch, self._reader_types)
                for name in {_short_name(one), *one["aliases"]} if _is_named(one) else ("",):
                    known.setdefault(name, []).append(branch)
        if not _is_named(writer):
            return known.get("", [])
        short, full = _short_name(writer), writer["name"]
        return known.get(short, []) + (known.get(full, []) if full != short else [])

    def _compare_once(self, reader: Any, writer: Any, compare: Callable[[], list[str]]) -> list[str]:
        """Return the faults of two named types, which are compared when they are met first."""
        pair = (reader["name"], writer["name"])
        former = self._verdicts.get(pair)
        if former is not None:
            return former
        self._verdicts[pair] = []
        found = self._verdicts[pair] = compare()[:MAX_FAULTS]
        return found

    def _record_faults(self, reader: Any, writer: Any, path: str) -> list[str]:
        return self._compare_once(
            reader,
            writer,
            lambda: _name_faults(reader, writer, path) + self._field_faults(reader, writer, path),
        )

    def _field_faults(self, reader: Any, writer: Any, path: str) -> list[str]:
        found = []
        written = {field["name"]: field for field in writer["fields"]}
        for number, field in enumerate(reader["fields"]):
            names = [field["name"], *field.get("aliases", ())]
            old = next((written[name] for name in names if name in written), None)
            where = f"{path.rstrip('/')}/fields/{number}"
            if old is not None:
                found += self.faults(field["type"], old["type"], f"{where}/type")
            elif "default" not in field:
                found.append(
                    _fault("READER_FIELD_MISSING_DEFAULT_VALUE", where, f"{field['name']} is new and has no default")
                )
        return found

    def _array_faults(self, reader: Any, writer: Any, path: str) -> list[str]:
        return self.faults(reader["items"], writer["items"], f"{path.rstrip('/')}/items")

    def _map_faults(self, reader: Any, writer: Any, path: str) -> list[str]:
        return self.faults(reader["values"], writer["values"], f"{path.rstrip('/')}/values")

    def _enum_faults(self, reader: Any, writer: Any, path: str) -> list[str]:
        return self._compare_once(
            reader, writer, lambda: _name_faults(reader, writer, path) + _symbol_faults(reader, writer, path)
        )

    def _fixed_faults(self, reader: Any, writer: Any, path: str) -> list[str]:
        found = _name_faults(reader, writer, path)
        if reader["size"] != writer["size"]:
            found.append(
                _fault(
                    "FIXED_SIZE_MISMATCH", path, f"the reader has {reader['size']} bytes, the writer {writer['size']}"
                )
            )
        return found


_RULES: dict[str, Callable[[Comparison, Any, Any, str], list[str]]] = {
    "record": Comparison._record_faults,
    "array": Comparison._array_faults,
    "map": Comparison._map_faults,
    "enum": Comparison._enum_faults,
    "fixed": Comparison._fixed_faults,
}


def _expand(node: Any, types: dict[str, Any]) -> Any:
    return types.get(node, node) if isinstance(node, str) else node


def _kind(node: Any) -> str:
    return node if isinstance(node, str) else str(node["type"])


def _is_named(node: Any) -> bool:
    return isinstance(node, dict) and "name" in node


def _short_name(node: Any) -> str:
    return str(node["name"].rpartition(".")[2])


def _name_faults(reader: Any, writer: Any, path: str) -> list[str]:
    """Compare names without their namespace, as Avro's Java library does."""
    if _short_name(reader) == _short_name(writer) or writer["name"] in reader["aliases"]:
        return []
    return [_fault("NAME_MISMATCH", path, f"the reader has {reader['name']}, the writer {writer['name']}")]


def _symbol_faults(reader: Any, writer: Any, path: str) -> list[str]:
    """Return the reason if the writer has symbols that the reader neither knows nor has a default for."""
    known = frozenset(reader["symbols"])
    missing = [one for one in writer["symbols"] if one not in known]
    if not missing or "default" in reader:
        return []
    return [_fault("MISSING_ENUM_SYMBOLS", path, f"the reader does not know {', '.join(missing)}")]


def _fault(kind: str, path: str, description: str) -> str:
    return f"{{errorType:'{kind}', description:'{cut(description)}', path:'{cut(path)}'}}"
