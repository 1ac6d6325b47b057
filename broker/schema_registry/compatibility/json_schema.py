"""JSON Schema's rules, as Confluent's registry publishes them: an update must accept every value of the original.

    types          may be added; an integer is a number; ``enum`` may grow or be removed, not be added or shrink
    bounds         maxLength, maximum, ... may rise or be removed; minLength, minimum, ... may fall or be removed
    properties     an open object accepts any other properties (no additionalProperties), a closed one none (false), a
                   partly open one those that patternProperties or the schema of additionalProperties accepts
      added        if the original is closed: not required, or with a default; if it is partly open: the same, and the
                   property accepts that schema's values; if it is open: the property accepts everything
      removed      if the update is open: any; if it is partly open: that schema accepts the property's values; if it
                   is closed: the property was ``false``
      required     may be removed; may be added, except for a property that both list and the update has no default for
    items          as properties, by position
    combinations   anyOf, oneOf: for each schema of the original, one of the update accepts all its values;
                   allOf: each schema of the update accepts all values of one schema of the original
    not            its schema may be narrowed, or removed

An update that accepts everything is compatible with any original; so is any update of an original that accepts nothing.
A pair of schemas that contain themselves is not compared again within its own comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from tidelog.broker.schema_registry.compatibility.bounds import MAX_FAULTS, TOO_COMPLEX, TooComplexError, cut
from tidelog.broker.schema_registry.formats.json_schema import Documents
from tidelog.broker.schema_registry.formats.schema import ParsedSchema, compact

UPPER = ("maxLength", "maximum", "exclusiveMaximum", "maxProperties", "maxItems")
LOWER = ("minLength", "minimum", "exclusiveMinimum", "minProperties", "minItems")
TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
COMBINED = ("allOf", "anyOf", "oneOf")
ANNOTATIONS = frozenset(
    {"$schema", "$id", "id", "$anchor", "$comment", "title", "description", "default", "examples", "deprecated",
     "readOnly", "writeOnly", "definitions", "$defs"}
)  # fmt: skip
MAX_COMPARISONS = 5_000
"""Largest number of pairs of schemas in one comparison: nested combinations grow exponentially."""


MAX_MATCHES = 10_000
"""Largest number of pairs of a name and a pattern in one comparison. RE2 caches 128 compiled patterns; with more, each
pair compiles its pattern."""


class LocatedSchema(NamedTuple):
    """A schema, and the document in which its references are resolved."""

    node: Any
    document: Any

    def inner(self, node: Any) -> LocatedSchema:
        """Return a schema within this one."""
        return LocatedSchema(node, self.document)


def reading_faults(reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
    """Collect reasons why data of ``writer`` cannot be read by ``reader``."""
    original, update = writer.model, reader.model
    comparison = Comparison(original["documents"], update["documents"])
    roots = LocatedSchema(original["root"], original["root"]), LocatedSchema(update["root"], update["root"])
    try:
        return comparison.faults(*roots, "#")
    except TooComplexError:
        return [TOO_COMPLEX]


@dataclass(slots=True)
class Progress:
    """Pairs of schemas that are being compared, and how many were begun; nested comparisons share it."""

    under_way: set[tuple[int, int]] = field(default_factory=set)
    count: int = 0
    matches: int = 0
    """Number of pairs of a property's name and a pattern that were compared."""


class Comparison:
    """One comparison, with the documents that both sides refer to."""

    def __init__(
        self,
        original_documents: Documents,
        update_documents: Documents,
        progress: Progress | None = None,
    ) -> None:
        self._documents = (original_documents, update_documents)
        self._progress = progress or Progress()

    def faults(self, original: LocatedSchema, update: LocatedSchema, path: str) -> list[str]:
        """Collect reasons why the update does not accept all values of the original. Raises TooComplexError."""
        old, new = _follow(original, self._documents[0]), _follow(update, self._documents[1])
        pair = (id(old.node), id(new.node))
        if old.node is False or takes_all(new.node) or pair in self._progress.under_way:
            return []
        if new.node is False:
            return [fault("TYPE_CHANGED", path)]
        self._progress.count += 1
        if self._progress.count > MAX_COMPARISONS:
            raise TooComplexError
        self._progress.under_way.add(pair)
        try:
            found = self._compare(old._replace(node=_object(old.node)), new._replace(node=_object(new.node)), path)
            return found[:MAX_FAULTS]
        finally:
            self._progress.under_way.discard(pair)

    def _compare(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str]:
        found = self._compare_combinations(old, new, path)
        if found is not None:
            return found
        found = type_faults(old.node, new.node, path)
        if found:
            return found
        found = enum_faults(old.node, new.node, path) + bound_faults(old.node, new.node, path)
        for compare in (
            self._compare_properties,
            self._compare_required,
            self._compare_dependencies,
            self._compare_items,
            self._compare_not,
        ):
            found += compare(old, new, path)
        return found

    # ---- combinations

    def _compare_combinations(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str] | None:
        """Collect reasons if a side is a combination; return None if both can be compared by their keywords."""
        before, after = _combination(old.node), _combination(new.node)
        if after is not None and before is None:
            return self._compare_with_new_combination(old, new, after, path)
        if before is not None and after is None:
            if before != "allOf":
                return self._check_each(old, before, lambda branch: self.faults(branch, new, path))
            return self._check_cover(_branches(old, before), [new], path)
        if before is None or after is None:
            return None
        rest = self._compare(_drop_keyword(old, before), _drop_keyword(new, after), path)
        where = f"{path}/{after}"
        if "allOf" in (before, after) and before != after:
            return [*rest, fault("COMBINED_TYPE_CHANGED", where)]
        if after == "allOf":
            return rest + self._check_cover(_branches(old, before), _branches(new, after), where)
        return rest + self._check_each(old, before, lambda one: self._check_covered(one, _branches(new, after), where))

    def _compare_with_new_combination(self, old: LocatedSchema, new: LocatedSchema, after: str, path: str) -> list[str]:
        branches = _branches(new, after)
        if after == "allOf":
            found = [one for branch in branches for one in self.faults(old, branch, f"{path}/{after}")]
            return found + self._compare(old, _drop_keyword(new, after), path)
        return self._check_covered(old, branches, f"{path}/{after}") + self._compare(
            old, _drop_keyword(new, after), path
        )

    def _check_each(self, old: LocatedSchema, name: str, compare: Callable[[LocatedSchema], list[str]]) -> list[str]:
        return [one for branch in _branches(old, name) for one in compare(branch)]

    def _check_covered(self, old: LocatedSchema, branches: list[LocatedSchema], path: str) -> list[str]:
        """Return the reason if no branch accepts all values of ``old``."""
        if any(not self.faults(old, branch, path) for branch in branches):
            return []
        return [fault("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path)]

    def _check_cover(self, originals: list[LocatedSchema], updates: list[LocatedSchema], path: str) -> list[str]:
        """Return the reason if one of ``updates`` may refuse values that all of ``originals`` accept."""
        if all(any(not self.faults(old, new, path) for old in originals) for new in updates):
            return []
        return [fault("PRODUCT_TYPE_EXTENDED", path)]

    # ---- objects

    def _compare_properties(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str]:
        """Collect reasons in the properties that a side lists, then in all others."""
        if not _can_share(old.node, new.node, "object"):
            return []
        before, after = _schemas(old.node, "properties"), _schemas(new.node, "properties")
        found: list[str] = []
        for name in sorted(before.keys() | after.keys()):
            where = f"{path}/properties/{name}"
            if name not in after:
                found += self._compare_removed_property(old.inner(before[name]), new, name, where)
            elif name not in before:
                found += self._compare_added_property(old, new, name, where)
            else:
                found += self.faults(old.inner(before[name]), new.inner(after[name]), where)
        return found + self._compare_other_properties(old, new, path)

    def _compare_removed_property(self, old: LocatedSchema, new: LocatedSchema, name: str, path: str) -> list[str]:
        rest = self._rest_of(new.node, name)
        if rest is True:
            return []
        if rest is False:
            return [] if old.node is False else [fault("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path)]
        found = self.faults(old, new.inner(rest), path)
        return [*found, fault("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)] if found else []

    def _rest_of(self, node: Mapping[str, Any], name: str) -> Any:
        """Return ``rest_of``. Raises TooComplexError."""
        self._progress.matches += len(_schemas(node, "patternProperties"))
        if self._progress.matches > MAX_MATCHES:
            raise TooComplexError
        return rest_of(node, name)

    def _compare_added_property(self, old: LocatedSchema, new: LocatedSchema, name: str, path: str) -> list[str]:
        rest, added = self._rest_of(old.node, name), new.node["properties"][name]
        if rest is True:
            is_open = takes_all(_follow(new.inner(added), self._documents[1]).node)
            return [] if is_open else [fault("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", path)]
        found = [] if rest is False else self.faults(old.inner(rest), new.inner(added), path)
        if found:
            found.append(fault("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path))
        if name in _names(new.node.get("required")) and not has_default(added):
            found.append(fault("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path))
        return found

    def _compare_other_properties(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str]:
        before, after = old.node.get("additionalProperties", True), new.node.get("additionalProperties", True)
        where = f"{path}/additionalProperties"
        if before is not False and after is False:
            return [fault("ADDITIONAL_PROPERTIES_REMOVED", where)]
        if takes_all(before) and not takes_all(after):
            return [fault("ADDITIONAL_PROPERTIES_NARROWED", where)]
        return self.faults(old.inner(before), new.inner(after), where)

    def _compare_required(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str]:
        before, after = _schemas(old.node, "properties"), _schemas(new.node, "properties")
        came = _names(new.node.get("required")) - _names(old.node.get("required"))
        wrong = sorted(name for name in came if name in before and name in after and not has_default(after[name]))
        return [fault("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}") for name in wrong]

    def _compare_dependencies(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str]:
        """Collect reasons in what the presence of a property requires: it may be weakened or removed."""
        found: list[str] = []
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            before, after = _schemas(old.node, keyword), _schemas(new.node, keyword)
            for name, wanted in after.items():
                where, had = f"{path}/{keyword}/{name}", before.get(name)
                is_list = isinstance(wanted, list)
                if had is None or isinstance(had, list) != is_list:
                    found.append(fault(f"DEPENDENCY_{'ARRAY' if is_list else 'SCHEMA'}_ADDED", where))
                elif not is_list:
                    found += self.faults(old.inner(had), new.inner(wanted), where)
                elif not _names(wanted) <= _names(had):
                    found.append(fault("DEPENDENCY_ARRAY_EXTENDED", where))
        return found

    # ---- arrays

    def _compare_items(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str]:
        """Collect reasons in the items of arrays: position by position, then in all further ones."""
        if not _can_share(old.node, new.node, "array"):
            return []
        found: list[str] = []
        if new.node.get("uniqueItems") is True and old.node.get("uniqueItems") is not True:
            found.append(fault("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems"))
        (before, rest_before), (after, rest_after) = _items(old.node), _items(new.node)
        for number in range(max(len(before), len(after))):
            one = before[number] if number < len(before) else rest_before
            other = after[number] if number < len(after) else rest_after
            found += self.faults(old.inner(one), new.inner(other), f"{path}/items/{number}")
        return found + self.faults(old.inner(rest_before), new.inner(rest_after), f"{path}/items")

    def _compare_not(self, old: LocatedSchema, new: LocatedSchema, path: str) -> list[str]:
        if "not" not in new.node:
            return []
        if "not" not in old.node:
            return [fault("NOT_TYPE_EXTENDED", f"{path}/not")]
        # swapped: values that the update forbids must be forbidden by the original
        swapped = Comparison(self._documents[1], self._documents[0], self._progress)
        found = swapped.faults(new.inner(new.node["not"]), old.inner(old.node["not"]), f"{path}/not")
        return [fault("NOT_TYPE_EXTENDED", f"{path}/not")] if found else []


# ---- one schema


def takes_all(node: Any) -> bool:
    """Return whether a schema accepts every value."""
    return node is True or (isinstance(node, dict) and not node.keys() - ANNOTATIONS)


def has_default(node: Any) -> bool:
    """Return whether a schema has a default."""
    return isinstance(node, dict) and "default" in node


def types_of(node: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema accepts; a number may be an integer."""
    given = node.get("type")
    found = frozenset([given] if isinstance(given, str) else _names(given) or TYPES)
    return found | {"integer"} if "number" in found else found


def rest_of(node: Mapping[str, Any], name: str) -> Any:
    """Return the schema of a property that is not listed: True for anything, False for nothing."""
    for pattern, schema in _schemas(node, "patternProperties").items():
        if matches(pattern, name):
            return schema
    rest = node.get("additionalProperties", True)
    return True if takes_all(rest) and not node.get("patternProperties") else rest


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches, by RE2, which takes linear time for any pattern. A pattern that RE2 refuses, such
    as one with look-around, matches no name."""
    re2: Any = import_module("re2")  # re2 has no type hints
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.search(pattern, name, options=options) is not None
    except re2.error:
        return False


def type_faults(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    """Collect reasons in the types."""
    before, after = types_of(old), types_of(new)
    if before <= after:
        return []
    return [fault("TYPE_NARROWED" if before & after else "TYPE_CHANGED", f"{path}/type")]


def enum_faults(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    """Collect reasons in listed values."""
    before, after = _listed_values(old), _listed_values(new)
    if after is None or (before is not None and before <= after):
        return []
    return [fault("ENUM_ARRAY_NARROWED" if before is not None else "ENUM_ARRAY_ADDED", f"{path}/enum")]


def bound_faults(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    """Collect reasons in bounds, patterns and multiples."""
    found = []
    for names, sign, change in ((UPPER, 1, "DECREASED"), (LOWER, -1, "INCREASED")):
        for name in names:
            before, after = _number(old.get(name)), _number(new.get(name))
            if after is not None and before is None:
                found.append(fault(f"{_constant(name)}_ADDED", f"{path}/{name}"))
            elif after is not None and before is not None and sign * after < sign * before:
                found.append(fault(f"{_constant(name)}_{change}", f"{path}/{name}"))
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        found.append(fault("PATTERN_CHANGED" if "pattern" in old else "PATTERN_ADDED", f"{path}/pattern"))
    before, after = _number(old.get("multipleOf")), _number(new.get("multipleOf"))
    if after is not None and (before is None or not is_multiple(before, after)):
        found.append(fault("MULTIPLE_OF_CHANGED" if before is not None else "MULTIPLE_OF_ADDED", f"{path}/multipleOf"))
    return found


def is_multiple(value: float, factor: float) -> bool:
    """Return whether a number is a multiple of another one; False if that cannot be computed."""
    try:
        return value % factor == 0
    except (OverflowError, ZeroDivisionError):  # an integer too large for a float; 0 in a document that was not checked
        return False


def fault(kind: str, path: str) -> str:
    """Return a reason in the form of answers."""
    return f"{{errorType:'{kind}', path:'{cut(path)}'}}"


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _names(value: Any) -> frozenset[str]:
    """Return the texts in a list; none if it is not a list, as in a referenced document that is not a schema."""
    return frozenset(one for one in value if isinstance(one, str)) if isinstance(value, list) else frozenset()


def _constant(name: str) -> str:
    """Return a keyword as reasons write it: maxLength as MAX_LENGTH."""
    return re.sub(r"([A-Z])", r"_\1", name).upper()


def _listed_values(node: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the only values that a schema accepts, each as JSON, in which 1 and true differ; None if it lists none."""
    values = [node["const"]] if "const" in node else node.get("enum")
    return frozenset(compact(one, is_sorted=True) for one in values) if isinstance(values, list) else None


def _schemas(node: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    found = node.get(keyword)
    return found if isinstance(found, dict) else {}


def _items(node: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and the one of all further items."""
    if isinstance(node.get("prefixItems"), list):
        return node["prefixItems"], node.get("items", True)
    items = node.get("items", True)
    return (items, node.get("additionalItems", True)) if isinstance(items, list) else ([], items)


def _can_share(old: Mapping[str, Any], new: Mapping[str, Any], kind: str) -> bool:
    return kind in types_of(old) and kind in types_of(new)


def _object(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else {}


def _combination(node: Mapping[str, Any]) -> str | None:
    return next((name for name in COMBINED if isinstance(node.get(name), list)), None)


def _branches(located: LocatedSchema, name: str) -> list[LocatedSchema]:
    return [located.inner(one) for one in located.node[name]]


def _drop_keyword(located: LocatedSchema, name: str) -> LocatedSchema:
    return located.inner({each: one for each, one in located.node.items() if each != name})


def _follow(located: LocatedSchema, documents: Documents) -> LocatedSchema:
    """Follow ``$ref``; one without a target, or in a cycle, accepts every value."""
    for _ in range(100):
        reference = located.node.get("$ref") if isinstance(located.node, dict) else None
        if not isinstance(reference, str):
            return located
        found = documents.resolve(reference, located.document)
        if found is None:
            break
        located = LocatedSchema(*found)
    return LocatedSchema(True, located.document)
