"""State that is loaded from a compacted ``_schemas``, in which only the newest record of each key is left."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.broker.schema_registry import changes
from tidelog.broker.schema_registry.changes import Submission
from tidelog.broker.schema_registry.errors import RegistryError
from tidelog.broker.schema_registry.records import (
    Key,
    KeyType,
    Reference,
    StoredRecord,
    decode_key,
    decode_value,
    encode_key,
    mode_record,
    to_bytes,
)
from tidelog.broker.schema_registry.state import State

Stored = tuple[bytes, bytes | None]
CONFLUENTS_NOOP = b'{"keytype":"NOOP","magic":0}'
"""Key of the records without a value that Confluent's registry writes when it becomes the leader."""


class Serving:
    """A registry without a broker: its state, and the topic's records as they are stored."""

    def __init__(self) -> None:
        self.state = State()
        self.log: list[Stored] = []

    def write(self, records: Sequence[StoredRecord]) -> None:
        for key, value in records:
            self.append(encode_key(key), None if value is None else to_bytes(value))

    def append(self, key: bytes, value: bytes | None) -> None:
        self.log.append((key, value))
        replay(self.state, key, value)

    def register(self, subject: str, text: str, references: tuple[Reference, ...] = ()) -> None:
        self.submit(subject, Submission(text, references=references))

    def submit(self, subject: str, submission: Submission) -> None:
        changes.check_writable(self.state, subject, submission)
        changes.check_references(self.state, subject, submission)
        self.write(changes.register(self.state, changes.new_version(self.state, subject, submission, submission.text)))

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> None:
        if version is None:
            self.write(changes.delete_subject(self.state, subject, permanent=permanent)[1])
        else:
            self.write(changes.delete_version(self.state, subject, version, permanent=permanent)[1])


def replay(state: State, key: bytes, value: bytes | None) -> None:
    read = decode_key(key)
    assert read is not None
    state.replay(read, decode_value(value))


def compacted(log: list[Stored], end: int, *, tombstones: bool = True) -> list[Stored]:
    """Leave out each of the first ``end`` records that has a later one with its key among them, and the tombstones
    among them unless they are kept."""
    newest = {key: index for index, (key, _) in enumerate(log[:end])}
    return [
        (key, value)
        for index, (key, value) in enumerate(log)
        if index >= end or (newest[key] == index and (tombstones or value is not None))
    ]


def loaded(log: list[Stored]) -> State:
    state = State()
    for key, value in log:
        replay(state, key, value)
    return state


def facts_of(state: State) -> dict[str, Any]:
    """Return what requests can see of a state, in the order in which they see it."""
    subjects = state.subjects(deleted=True)
    versions = {name: state.versions(name, deleted=True) for name in subjects}
    every = [one for found in versions.values() for one in found]
    return {
        "versions": versions,
        "ids": {one.id: state.find_by_id(one.id) for one in every},
        "contents": {one.content: state.same_content(one.content) for one in every},
        "references": {(one.subject, one.version): state.references_to(one.subject, one.version) for one in every},
        "settings": (state.levels, state.modes),
        "last id": state.last_id,
    }


def change_anything(serving: Serving, chance: random.Random) -> None:
    """Make a random change. Raises RegistryError if it is refused."""
    subject, text = chance.choice("ab"), chance.choice("xyz")
    kind = chance.choice(
        ["register", "register", "import", "import", "version", "version!", "subject", "subject!", "set"]
    )
    if kind == "register":
        references = (Reference("r", chance.choice("ab"), 1),) if chance.random() < 0.2 else ()
        serving.register(subject, text, references)
    elif kind == "import":
        serving.write([mode_record(subject, "IMPORT")])
        serving.submit(subject, Submission(text, id=chance.randrange(1, 9), version=chance.randrange(1, 5)))
        serving.write([mode_record(subject, None)])
    elif kind.startswith("version"):
        serving.delete(subject, chance.randrange(1, 5), permanent=kind.endswith("!"))
    elif kind.startswith("subject"):
        serving.delete(subject, permanent=kind.endswith("!"))
    elif chance.random() < 0.5:
        serving.append(CONFLUENTS_NOOP, None)
    else:
        named = chance.choice([None, subject])
        serving.write(changes.set_level(serving.state, named, chance.choice([None, "FULL"])))


@pytest.mark.parametrize("seed", range(200))
def test_the_state_is_the_same_after_any_compaction(seed: int) -> None:
    chance, serving = random.Random(seed), Serving()
    for _ in range(chance.randrange(3, 30)):
        try:
            change_anything(serving, chance)
        except RegistryError:
            if serving.state.modes:
                serving.write([mode_record(name, None) for name in list(serving.state.modes)])
    expected = facts_of(serving.state)
    for end in {len(serving.log), *(chance.randrange(len(serving.log) + 1) for _ in range(4))}:
        for tombstones in (True, False):
            assert facts_of(loaded(compacted(serving.log, end, tombstones=tombstones))) == expected


def test_deleted_versions_stay_deleted_when_a_lower_one_is_imported_and_deleted_again() -> None:
    """They came back: the record of a subject's deletion has one key, and the later one named a lower version."""
    serving = Serving()
    serving.register("s", "x")
    serving.register("s", "y")
    serving.delete("s")
    serving.write([mode_record("s", "IMPORT")])
    serving.submit("s", Submission("x", id=1, version=1))
    assert changes.delete_subject(serving.state, "s", permanent=False)[0] == [1]
    serving.delete("s")
    assert loaded(compacted(serving.log, len(serving.log))).versions("s") == []


def test_an_id_is_not_used_twice_after_an_import_replaced_its_version() -> None:
    serving = Serving()
    serving.register("t", "x")
    serving.register("s", "y")
    serving.write([mode_record(None, "IMPORT")])
    serving.submit("s", Submission("x", id=1, version=1))
    serving.write([mode_record(None, None)])
    assert loaded(compacted(serving.log, len(serving.log))).last_id == serving.state.last_id == 2


def test_the_last_id_survives_the_noops_of_confluents_registry() -> None:
    """Theirs have no value. With the same bytes as a key, a compaction would leave only the last of them."""
    serving = Serving()
    serving.register("s", "x")
    serving.delete("s")
    serving.delete("s", permanent=True)
    serving.append(CONFLUENTS_NOOP, None)
    assert loaded(compacted(serving.log, len(serving.log))).last_id == 1


def test_the_last_id_is_a_noop_to_confluents_registry() -> None:
    """It reads keys as JSON, in which the order of fields means nothing."""
    key = encode_key(Key(KeyType.NOOP))
    assert key != CONFLUENTS_NOOP
    assert json.loads(key) == json.loads(CONFLUENTS_NOOP)
    assert decode_key(key) == decode_key(CONFLUENTS_NOOP) == Key(KeyType.NOOP)
