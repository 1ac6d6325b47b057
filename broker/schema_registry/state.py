"""The registry's state: subjects with their versions, ids, compatibility levels and modes.

Only ``replay`` changes the state, with the records in the order of the log. An id belongs to one content as long as a
version with that content is left, softly deleted ones included. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tidelog.broker.schema_registry.contexts import context_in
from tidelog.broker.schema_registry.records import (
    LAST_ID,
    Key,
    KeyType,
    MalformedRecordError,
    Reference,
    RegisteredSchema,
    schema_of,
)

DEFAULT_LEVEL = "BACKWARD"
DEFAULT_MODE = "READWRITE"

SubjectVersion = tuple[str, int]
"""A subject and a version of it."""


class State:
    """State after the records that were replayed."""

    def __init__(self, last_id: int = 0) -> None:
        """``last_id`` is the greatest id that was assigned before."""
        self._subjects: dict[str, dict[int, RegisteredSchema]] = {}
        self._ids: dict[int, dict[SubjectVersion, None]] = {}
        self._contents: dict[tuple[object, ...], dict[SubjectVersion, None]] = {}
        self._referenced: dict[SubjectVersion, dict[SubjectVersion, None]] = {}
        self.levels: dict[str | None, str] = {}
        """Compatibility levels that were set, by subject or context; None: the level of the whole registry."""
        self.modes: dict[str | None, str] = {}
        self.last_id = last_id
        """The greatest id that was ever assigned."""
        self.changes = 0
        """Number of records that were replayed."""

    # ---- records

    def replay(self, key: Key, value: Mapping[str, Any] | None) -> None:
        """Apply one record. Raises MalformedRecordError."""
        self.changes += 1
        if key.kind is KeyType.SCHEMA:
            assert key.subject is not None
            self._put(key.subject, key.version, None if value is None else schema_of(value))
        elif key.kind is KeyType.DELETE_SUBJECT:
            self._delete_up_to(key, value)
        elif key.kind is KeyType.CONFIG:
            _set(self.levels, key.subject, value, "compatibilityLevel")
        elif key.kind is KeyType.MODE:
            _set(self.modes, key.subject, value, "mode")
        elif value is not None:
            self._keep_last_id(value.get(LAST_ID, 0))

    def _keep_last_id(self, number: Any) -> None:
        if type(number) is not int:
            raise MalformedRecordError(f"{LAST_ID} is {number!r}")
        self.last_id = max(self.last_id, number)

    def _delete_up_to(self, key: Key, value: Mapping[str, Any] | None) -> None:
        last = (value or {}).get("version", 0)
        if type(last) is not int:
            raise MalformedRecordError(f"the version {last!r}")
        for schema in list(self._subjects.get(key.subject or "", {}).values()):
            if schema.version <= last:
                self._put(schema.subject, schema.version, replace(schema, deleted=True))

    def _put(self, subject: str, version: int, schema: RegisteredSchema | None) -> None:
        """Set a version of a subject in all mappings; None removes it."""
        pair = (subject, version)
        old = self._subjects.get(subject, {}).pop(version, None)
        if old is not None:
            self._forget(old, pair)
        if schema is not None:
            self._subjects.setdefault(subject, {})[version] = schema
            self._ids.setdefault(schema.id, {})[pair] = None
            self._contents.setdefault(schema.content, {})[pair] = None
            for target in _targets_of(schema):
                self._referenced.setdefault(target, {})[pair] = None
            self.last_id = max(self.last_id, schema.id)
        elif not self._subjects.get(subject):
            self._subjects.pop(subject, None)

    def _forget(self, old: RegisteredSchema, pair: SubjectVersion) -> None:
        _drop(self._ids, old.id, pair)
        _drop(self._contents, old.content, pair)
        for target in _targets_of(old):
            _drop(self._referenced, target, pair)

    # ---- questions

    def subjects(self, *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Return the names of subjects, sorted: those with a version that is not deleted.

        ``deleted`` adds those with deleted versions only; ``deleted_only`` returns no others.
        """
        found = []
        for name, versions in self._subjects.items():
            is_live = any(not one.deleted for one in versions.values())
            if not is_live if deleted_only else is_live or deleted:
                found.append(name)
        return sorted(found)

    def versions(self, subject: str, *, deleted: bool = False) -> list[RegisteredSchema]:
        """Return the versions of a subject in order; with ``deleted`` also softly deleted ones."""
        found = self._subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def holds_schemas(self, name: str | None) -> bool:
        """Return whether a subject, a context or, for None, the registry has a version that is not deleted."""
        if name is None or (name and name == context_in(name)):
            return any(one.startswith(name or "") for one in self.subjects())
        return bool(self.versions(name))

    def version(self, subject: str, number: int) -> RegisteredSchema | None:
        """Return a version, also a softly deleted one."""
        return self._subjects.get(subject, {}).get(number)

    def find_by_id(self, number: int) -> list[RegisteredSchema]:
        """Return the versions that have an id, softly deleted ones too."""
        return list(self._find_all(self._ids.get(number, {})))

    def same_content(self, content: tuple[object, ...]) -> list[RegisteredSchema]:
        """Return the versions of this content, softly deleted ones too."""
        return list(self._find_all(self._contents.get(content, {})))

    def references_to(self, subject: str, number: int) -> list[RegisteredSchema]:
        """Return the versions that refer to a version and are not deleted."""
        return [one for one in self._find_all(self._referenced.get((subject, number), {})) if not one.deleted]

    def _find_all(self, pairs: Mapping[SubjectVersion, None]) -> Iterator[RegisteredSchema]:
        """Yield versions in the order of subjects and numbers, as compaction changes the order of their records."""
        return (self._subjects[subject][version] for subject, version in sorted(pairs))

    def resolve(self, references: tuple[Reference, ...]) -> tuple[tuple[Reference, RegisteredSchema], ...]:
        """Return all schemas that references lead to, each after those that it refers to, once for each name that a
        reference gives it.

        Raises KeyError for a reference to a missing version.
        """
        found: dict[tuple[str, str, int], tuple[Reference, RegisteredSchema]] = {}
        waiting: list[tuple[Reference, bool]] = [(one, False) for one in reversed(references)]
        seen: set[Reference] = set()
        while waiting:
            reference, is_ready = waiting.pop()
            schema = self.version(reference.subject, reference.version)
            if schema is None:
                raise KeyError(reference)
            if is_ready:
                found.setdefault(reference, (reference, schema))
            elif reference not in seen:
                seen.add(reference)
                waiting.append((reference, True))
                waiting += [(one, False) for one in reversed(schema.references)]
        return tuple(found.values())

    def level_of(self, subject: str) -> str:
        """Return the compatibility level that applies to a subject."""
        found = self.levels.get(subject) or self.levels.get(context_in(subject))
        return found or self.levels.get(None, DEFAULT_LEVEL)

    def mode_of(self, subject: str) -> str:
        """Return the mode that applies to a subject."""
        registry_mode = self.modes.get(None, DEFAULT_MODE)
        if registry_mode == "READONLY_OVERRIDE":
            return registry_mode
        return self.modes.get(subject) or self.modes.get(context_in(subject)) or registry_mode


def _set(settings: dict[str | None, str], subject: str | None, value: Mapping[str, Any] | None, name: str) -> None:
    text = None if value is None else value.get(name)
    if text is None:
        settings.pop(subject, None)
    elif isinstance(text, str):
        settings[subject] = text
    else:
        raise MalformedRecordError(f"{name} is {text!r}")


def _targets_of(schema: RegisteredSchema) -> set[SubjectVersion]:
    """Return the versions that a schema refers to, each once: it may refer to one by several names."""
    return {(one.subject, one.version) for one in schema.references}


def _drop(pairs: dict[Any, dict[SubjectVersion, None]], name: Any, pair: SubjectVersion) -> None:
    found = pairs[name]
    del found[pair]
    if not found:
        del pairs[name]
