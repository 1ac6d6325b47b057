"""Changes of the registry: functions that check a request and return the records to write, or raise an error. No
function changes the state.

A caller writes the records, waits until they are committed, and the state replays them. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tidelog.broker.schema_registry import errors
from tidelog.broker.schema_registry.contexts import context_in
from tidelog.broker.schema_registry.formats.schema import Source
from tidelog.broker.schema_registry.records import (
    AVRO,
    Reference,
    RegisteredSchema,
    StoredRecord,
    config_record,
    deletion_record,
    last_id_record,
    mode_record,
    schema_record,
    tombstone,
)
from tidelog.broker.schema_registry.state import State, SubjectVersion

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
LATEST = -1
MAX_REFERENCES = 1_000
"""Largest number of references of one schema: the loop looks up each of them."""
MAX_NUMBER = 2**31 - 1
"""Largest id and largest version: serializers write an id as a signed number of 32 bits."""


class Submission(NamedTuple):
    """A schema as a client sends it."""

    text: str
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    id: int | None = None
    version: int | None = None


def submission_of(body: Any) -> Submission:
    """Read the body of a request. Raises RegistryError."""
    if not isinstance(body, dict):
        raise errors.RegistryError(422, "the body must be a JSON object")
    text, kind = body.get("schema"), body.get("schemaType") or AVRO
    number, version = body.get("id"), body.get("version")
    if not isinstance(text, str) or not text:
        raise errors.RegistryError(42201, "Empty schema")
    if not isinstance(kind, str) or not _is_number(number) or not _is_number(version):
        raise errors.RegistryError(422, "schemaType must be a string, id and version numbers")
    references = body.get("references") or []
    if not isinstance(references, list) or len(references) > MAX_REFERENCES:
        raise errors.RegistryError(422, f"references must be a list of at most {MAX_REFERENCES}")
    # serializers send -1 and 0 for "not known"
    return Submission(
        text, kind.upper(), tuple(map(_reference, references)), _positive_number(number), _positive_number(version)
    )


def _is_number(value: Any) -> bool:
    return value is None or (type(value) is int and -1 <= value <= MAX_NUMBER)


def _positive_number(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def _reference(one: Any) -> Reference:
    if isinstance(one, Mapping):
        name, subject, version = one.get("name"), one.get("subject"), one.get("version")
        if isinstance(name, str) and isinstance(subject, str) and type(version) is int:
            return Reference(name, subject, version)
    raise errors.RegistryError(422, "a reference must have a name, a subject and a version")


def pin_references(state: State, submission: Submission) -> Submission:
    """Return a submission in which references to the latest version have that version's number.

    Raises RegistryError if such a reference is to a subject without a version that is not deleted.
    """
    return submission._replace(references=_number_references(state, submission.references))


def _number_references(state: State, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
    subjects = dict.fromkeys(one.subject for one in references if one.version == LATEST)
    newest = {subject: version_of(state, subject, LATEST).version for subject in subjects}
    return tuple(one if one.version != LATEST else one._replace(version=newest[one.subject]) for one in references)


def source_of(state: State, submission: Submission) -> Source:
    """Return a submitted schema with all schemas that it refers to. Raises RegistryError."""
    return _with_references(state, submission.schema_type, submission.text, submission.references)


def source_of_registered(state: State, schema: RegisteredSchema) -> Source:
    """Return a registered schema with all schemas that it refers to. Raises RegistryError if one of those is gone."""
    return _with_references(state, schema.schema_type, schema.text, schema.references)


def _with_references(state: State, kind: str, text: str, references: tuple[Reference, ...]) -> Source:
    try:
        found = state.resolve(_number_references(state, references))
    except KeyError as error:
        raise errors.reference_not_found(error.args[0]) from None
    return Source(kind, text, tuple((reference.name, schema.text) for reference, schema in found))


def check_references(state: State, subject: str, submission: Submission) -> None:
    """Raise RegistryError for a reference to a missing version, or to a softly deleted one. In import mode nothing is
    checked here: another registry has accepted the schemas."""
    if state.mode_of(subject) == "IMPORT":
        return
    for one in submission.references:
        schema = state.version(one.subject, one.version)
        if schema is None or schema.deleted:
            raise errors.reference_not_found(one)


# ---- versions


def parse_version(text: str) -> int:
    """Return the number of a version; LATEST for ``latest`` and -1. Raises RegistryError."""
    if text in ("latest", "-1"):
        return LATEST
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0
    if not 1 <= number <= MAX_NUMBER:
        raise errors.invalid_version(text)
    return number


def versions_of(state: State, subject: str, *, deleted: bool = False) -> list[RegisteredSchema]:
    """Return the versions of a subject, one at least. Raises RegistryError."""
    found = state.versions(subject, deleted=deleted)
    if not found:
        raise errors.subject_not_found(subject)
    return found


def version_of(state: State, subject: str, number: int, *, deleted: bool = False) -> RegisteredSchema:
    """Return a version of a subject. Raises RegistryError."""
    found = versions_of(state, subject, deleted=deleted)
    if number == LATEST:
        return found[-1]
    for one in found:
        if one.version == number:
            return one
    raise errors.version_not_found(number)


# ---- registration


def check_writable(state: State, subject: str, submission: Submission | None = None) -> None:
    """Raise RegistryError if the mode forbids the change, or if the subject of a submission is only a context. A
    submission must have an id in import mode, and none in any other mode."""
    if submission is not None and subject == context_in(subject):
        raise errors.invalid_subject(subject)
    mode = state.mode_of(subject)
    if mode.startswith("READONLY"):
        raise errors.forbidden_operation(f"Subject {subject} is in read-only mode")
    if submission is not None:
        if mode == "IMPORT" and submission.id is None:
            raise errors.forbidden_operation(f"Subject {subject} is in import mode")
        if mode != "IMPORT" and submission.id is not None:
            raise errors.forbidden_operation(f"Subject {subject} is not in import mode")


def new_version(state: State, subject: str, submission: Submission, canonical: str) -> RegisteredSchema:
    """Return the schema as it will be registered. Its id is the submitted one in import mode, else that of equal
    content, else the next one. Raises RegistryError."""
    every = state.versions(subject, deleted=True)
    fresh = RegisteredSchema(
        subject=subject,
        version=every[-1].version + 1 if every else 1,
        id=state.last_id + 1,
        text=canonical,
        schema_type=submission.schema_type,
        references=submission.references,
    )
    if state.mode_of(subject) == "IMPORT" and submission.id is not None:
        found = _build_imported(state, fresh, submission)
    else:
        same = state.same_content(fresh.content)
        found = replace(fresh, id=min(one.id for one in same)) if same else fresh
    if max(found.id, found.version) > MAX_NUMBER:
        raise errors.store_failed(f"no id and no version can be greater than {MAX_NUMBER}")
    return found


def _build_imported(state: State, fresh: RegisteredSchema, submission: Submission) -> RegisteredSchema:
    assert submission.id is not None
    if any(one.content != fresh.content for one in state.find_by_id(submission.id)):
        raise errors.schema_id_in_use(submission.id)
    return replace(fresh, id=submission.id, version=submission.version or fresh.version)


def register(state: State, schema: RegisteredSchema) -> list[StoredRecord]:
    """Return the records of a new version, or of an imported one. Compaction removes the record of a replaced
    version. If the replaced id is greater than the new one, another record keeps the greatest id."""
    replaced = state.version(schema.subject, schema.version)
    if replaced is None or replaced.id <= schema.id:
        return [schema_record(schema)]
    return [schema_record(schema), last_id_record(state.last_id)]


def to_compare(level: str, versions: Sequence[RegisteredSchema]) -> Sequence[RegisteredSchema]:
    """Return the versions with which a level compares a new one, the newest first."""
    if level == "NONE":
        return ()
    return tuple(reversed(versions)) if level.endswith("_TRANSITIVE") else tuple(versions[-1:])


# ---- deletions


def delete_version(
    state: State, subject: str, number: int, *, permanent: bool
) -> tuple[RegisteredSchema, list[StoredRecord]]:
    """Return the version to delete, and the records of its deletion. Raises RegistryError."""
    check_writable(state, subject)
    found = version_of(state, subject, number, deleted=permanent or number != LATEST)
    _check_unreferenced(state, found)
    if permanent:
        if not found.deleted:
            raise errors.version_not_soft_deleted(subject, found.version)
        return found, [tombstone(subject, found.version), last_id_record(state.last_id)]
    if found.deleted:
        raise errors.version_soft_deleted(subject, found.version)
    records = [schema_record(replace(found, deleted=True))]
    if len(state.versions(subject)) == 1:
        records += _remove_settings(state, subject)
    return found, records


def delete_subject(state: State, subject: str, *, permanent: bool) -> tuple[list[int], list[StoredRecord]]:
    """Return the versions to delete, and the records of their deletion. Raises RegistryError."""
    check_writable(state, subject)
    every = versions_of(state, subject, deleted=True)
    live = [one for one in every if not one.deleted]
    for one in every if permanent else live:
        _check_unreferenced(state, one)
    if permanent:
        if live:
            raise errors.subject_not_soft_deleted(subject)
        gone = [tombstone(subject, one.version) for one in every]
        return [one.version for one in every], [*gone, last_id_record(state.last_id)]
    if not live:
        raise errors.subject_soft_deleted(subject)
    # Compaction keeps only the last deletion record of a subject, so this one covers the versions of earlier ones, too.
    records = [deletion_record(subject, every[-1].version), *_remove_settings(state, subject)]
    return [one.version for one in live], records


def _check_unreferenced(state: State, schema: RegisteredSchema) -> None:
    pair: SubjectVersion = (schema.subject, schema.version)
    if state.references_to(*pair):
        raise errors.reference_exists(*pair)


def _remove_settings(state: State, subject: str) -> list[StoredRecord]:
    found = []
    if subject in state.modes:
        found.append(mode_record(subject, None))
    if subject in state.levels:
        found.append(config_record(subject, None))
    return found


# ---- settings


def parse_level(value: Any) -> str:
    """Return a compatibility level. Raises RegistryError."""
    level = value.upper() if isinstance(value, str) else ""
    if level not in LEVELS:
        raise errors.invalid_compatibility()
    return level


def set_level(state: State, subject: str | None, level: str | None) -> list[StoredRecord]:
    """Return the record of a level; None removes it. Raises RegistryError."""
    if state.mode_of(subject or "").startswith("READONLY"):
        named = "The registry" if subject is None else f"Subject {subject}"
        raise errors.forbidden_operation(f"{named} is in read-only mode")
    return [config_record(subject, level)]


def set_mode(state: State, subject: str | None, value: Any, *, force: bool) -> tuple[str, list[StoredRecord]]:
    """Return a mode and its record. Raises RegistryError."""
    mode = value.upper() if isinstance(value, str) else ""
    if mode not in MODES:
        raise errors.invalid_mode()
    holds_schemas = state.holds_schemas(subject)
    if mode == "IMPORT" and state.mode_of(subject or "") != "IMPORT" and holds_schemas and not force:
        raise errors.forbidden_operation("Cannot import since found existing subjects")
    return mode, [mode_record(subject, mode)]
