"""Service behind the HTTP interface: requests read the state, and changes are made one after another.

Parsing and rules of compatibility run in a thread of their own, on immutable values. A registration uses the rules'
result if no record was appended or replayed meanwhile; else the rules run again. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidelog.broker.schema_registry import changes, errors
from tidelog.broker.schema_registry.changes import LATEST, Submission
from tidelog.broker.schema_registry.compatibility.bounds import NOT_READABLE, TOO_COMPLEX
from tidelog.broker.schema_registry.formats.formats import parse, reading_faults
from tidelog.broker.schema_registry.formats.schema import InvalidSchemaError, ParsedSchema, Source
from tidelog.broker.schema_registry.records import (
    PROTOBUF,
    RegisteredSchema,
    StoredRecord,
    mode_record,
)
from tidelog.broker.schema_registry.state import DEFAULT_LEVEL, DEFAULT_MODE, State
from tidelog.broker.schema_registry.topic import SchemasTopic

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

T = TypeVar("T")
Change = Callable[[State], tuple[T, Sequence[StoredRecord]]]


class RegisteredSource(NamedTuple):
    """A registered schema to compare with a new one, and the source from which a thread can parse it."""

    schema: RegisteredSchema
    source: Source


class LookedUpSchema(NamedTuple):
    """A schema to look up, as it was sent or normalized."""

    parsed: ParsedSchema
    normalize: bool = False

    @property
    def text(self) -> str:
        """The text that is stored."""
        return self.parsed.normalized if self.normalize else self.parsed.canonical

    def equals(self, other: ParsedSchema) -> bool:
        """Return whether a registered schema equals this one."""
        if self.normalize:
            return other.normalized == self.parsed.normalized
        return other.identity == self.parsed.identity


class Registry:
    """The registry of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._topic = SchemasTopic(broker)
        self._loop = broker.loop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="schema-registry")
        self._writing = asyncio.Lock()

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def state(self) -> State:
        """Return the state with all committed records. Raises RegistryError."""
        return await self._topic.read_state()

    async def _run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            return await self._loop.run_in_executor(self._executor, work, *arguments)
        except InvalidSchemaError as error:
            raise errors.invalid_schema(str(error)) from error

    async def _change(self, change: Change[T]) -> T:
        """Write the records of a change. Raises RegistryError."""
        async with self._writing:
            answer, records = change(await self._topic.settle())
            if records:
                await self._topic.write(records)
            return answer

    # ---- schemas

    async def parse_submission(self, submission: Submission) -> ParsedSchema:
        """Parse a submitted schema. Raises RegistryError."""
        return await self._run_in_thread(parse, changes.source_of(await self.state(), submission))

    async def parse_version(self, schema: RegisteredSchema) -> ParsedSchema:
        """Parse a registered schema. Raises RegistryError."""
        return await self._run_in_thread(parse, changes.source_of_registered(await self.state(), schema))

    async def register(self, subject: str, submission: Submission, *, normalize: bool = False) -> RegisteredSchema:
        """Register a schema. If the subject has it, return that version, in every mode, unless another id was
        submitted. Raises RegistryError."""
        submission = changes.pin_references(await self.state(), submission)
        parsed = await self.parse_submission(submission)
        async with self._writing:
            while True:
                state = await self._topic.settle()
                before = state.changes
                source = changes.source_of(state, submission)
                if source != parsed.source:  # a schema that it refers to was replaced meanwhile
                    parsed = await self._run_in_thread(parse, source)
                equal = await self._find_equal(
                    state, subject, submission, LookedUpSchema(parsed, normalize), deleted=False
                )
                if equal is not None and submission.id in (None, equal.id):
                    return equal
                changes.check_writable(state, subject, submission)
                changes.check_references(state, subject, submission)
                if state.mode_of(subject) != "IMPORT":
                    await self._check_compatible(state, subject, parsed)
                settled = await self._topic.settle()
                if settled is state and settled.changes == before:
                    break
            schema = changes.new_version(state, subject, submission, LookedUpSchema(parsed, normalize).text)
            await self._topic.write(changes.register(state, schema))
            return schema

    async def look_up(
        self, subject: str, submission: Submission, *, deleted: bool, normalize: bool = False
    ) -> RegisteredSchema:
        """Return the version of a subject that is this schema. Raises RegistryError."""
        state = await self.state()
        changes.versions_of(state, subject, deleted=deleted)
        submission = changes.pin_references(state, submission)
        parsed = await self._run_in_thread(parse, changes.source_of(state, submission))
        found = await self._find_equal(state, subject, submission, LookedUpSchema(parsed, normalize), deleted=deleted)
        if found is None:
            raise errors.schema_not_found()
        return found

    async def _find_equal(
        self, state: State, subject: str, submission: Submission, schema: LookedUpSchema, *, deleted: bool
    ) -> RegisteredSchema | None:
        """Return the version of a subject that equals a schema, in its text or after parsing both; else None."""
        versions = [
            one
            for one in state.versions(subject, deleted=deleted)
            if one.references == submission.references and one.schema_type == submission.schema_type
        ]
        for one in reversed(versions):
            if one.text == schema.text:
                return one
        # Other registries may write equal schemas differently, so versions are parsed and compared; of Protobuf's only
        # the newest one, as its compiler takes 0.1 s for each.
        foreign = versions[-1:] if submission.schema_type == PROTOBUF else versions
        originals = [RegisteredSource(one, changes.source_of_registered(state, one)) for one in reversed(foreign)]
        return await self._run_in_thread(find_equal, schema, originals)

    # ---- compatibility

    async def _check_compatible(self, state: State, subject: str, parsed: ParsedSchema) -> None:
        level = state.level_of(subject)
        found = await self._collect_faults(state, level, parsed, changes.to_compare(level, state.versions(subject)))
        if found:
            raise errors.incompatible(subject, [*found, f"{{compatibility: '{level}'}}"])

    async def _collect_faults(
        self, state: State, level: str, parsed: ParsedSchema, versions: Sequence[RegisteredSchema]
    ) -> list[str]:
        if level == "NONE":
            return []
        originals = [RegisteredSource(one, changes.source_of_registered(state, one)) for one in versions]
        return await self._run_in_thread(compatibility_faults, level, parsed, originals)

    async def compatibility(self, subject: str, submission: Submission, version: int | None) -> list[str]:
        """Return the reasons why a schema is incompatible with ``version``; if that is None, with the versions that a
        registration would compare. Raises RegistryError."""
        state = await self.state()
        submission = changes.pin_references(state, submission)
        level = state.level_of(subject)
        if version is None:
            versions = changes.to_compare(level, state.versions(subject))
        elif version == LATEST:
            versions = state.versions(subject)[-1:]
        else:
            versions = [changes.version_of(state, subject, version)]
        return await self._collect_faults(state, level, await self.parse_submission(submission), versions)

    # ---- deletions and settings

    async def delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        """Delete a version; returns its number. Raises RegistryError."""

        def change(state: State) -> tuple[int, Sequence[StoredRecord]]:
            found, records = changes.delete_version(state, subject, version, permanent=permanent)
            return found.version, records

        return await self._change(change)

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete all versions of a subject; returns their numbers. Raises RegistryError."""
        return await self._change(lambda state: changes.delete_subject(state, subject, permanent=permanent))

    async def set_level(self, subject: str | None, value: Any) -> str:
        """Set a compatibility level. Raises RegistryError."""
        level = changes.parse_level(value)
        return await self._change(lambda state: (level, changes.set_level(state, subject, level)))

    async def unset_level(self, subject: str | None) -> str:
        """Remove a compatibility level; returns it, or the default if none was set for the registry. Raises
        RegistryError."""

        def change(state: State) -> tuple[str, Sequence[StoredRecord]]:
            if subject is not None and subject not in state.levels:
                raise errors.subject_not_found(subject)
            return state.levels.get(subject, DEFAULT_LEVEL), changes.set_level(state, subject, None)

        return await self._change(change)

    async def set_mode(self, subject: str | None, value: Any, *, force: bool) -> str:
        """Set a mode. Raises RegistryError."""
        return await self._change(lambda state: changes.set_mode(state, subject, value, force=force))

    async def unset_mode(self, subject: str | None) -> str:
        """Remove a mode; returns it, or the default if none was set for the registry. Raises RegistryError."""

        def change(state: State) -> tuple[str, Sequence[StoredRecord]]:
            if subject is not None and subject not in state.modes:
                raise errors.subject_not_found(subject)
            return state.modes.get(subject, DEFAULT_MODE), [mode_record(subject, None)]

        return await self._change(change)


def find_equal(schema: LookedUpSchema, originals: Sequence[RegisteredSource]) -> RegisteredSchema | None:
    """Return the version that is equal though written differently, else None. Call it in a thread."""
    for old in originals:
        try:
            if schema.equals(parse(old.source)):
                return old.schema
        except InvalidSchemaError:
            continue  # another registry accepted it
    return None


def compatibility_faults(level: str, parsed: ParsedSchema, originals: Sequence[RegisteredSource]) -> list[str]:
    """Return the reasons why a schema is incompatible with the first of ``originals`` that it is incompatible with.
    Call it in a thread."""
    for old in originals:
        try:
            found = find_faults(level, parsed, parse(old.source))
        except InvalidSchemaError:  # another registry accepted it
            found = [NOT_READABLE]
        except RecursionError:  # the text has few levels, the chain of its references has many
            found = [TOO_COMPLEX]
        if found:
            return [*found, f"{{oldSchemaVersion: {old.schema.version}}}"]
    return []


def find_faults(level: str, parsed: ParsedSchema, former: ParsedSchema) -> list[str]:
    """Return the reasons why a schema is incompatible with a former one at a level. Call it in a thread."""
    found = [] if level.startswith("FORWARD") else reading_faults(parsed, former)
    return found if level.startswith("BACKWARD") else found + reading_faults(former, parsed)
