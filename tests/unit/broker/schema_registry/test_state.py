"""Records of ``_schemas`` in Confluent's form, and the state after their replay."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.broker.schema_registry import changes
from tidelog.broker.schema_registry.changes import LATEST, Submission
from tidelog.broker.schema_registry.errors import RegistryError
from tidelog.broker.schema_registry.records import (
    Key,
    KeyType,
    MalformedRecordError,
    Reference,
    RegisteredSchema,
    StoredRecord,
    config_record,
    decode_key,
    decode_value,
    deletion_record,
    encode_key,
    mode_record,
    schema_record,
    to_bytes,
    tombstone,
)
from tidelog.broker.schema_registry.state import State

# Keys and values as Confluent's registry writes them.
CONFLUENT = [
    (schema_record(RegisteredSchema("s", 1, 7, '"string"')),
     '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
     '{"subject":"s","version":1,"id":7,"schema":"\\"string\\"","deleted":false}'),
    (schema_record(RegisteredSchema("s", 2, 8, "{}", "JSON", (Reference("n", "t", 3),), deleted=True)),
     '{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
     '{"subject":"s","version":2,"id":8,"schemaType":"JSON","references":[{"name":"n","subject":"t","version":3}],'
     '"schema":"{}","deleted":true}'),
    (tombstone("s", 1), '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', None),
    (config_record(None, "FULL"), '{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    (config_record("s", None), '{"keytype":"CONFIG","subject":"s","magic":0}', None),
    (mode_record("s", "READONLY"), '{"keytype":"MODE","subject":"s","magic":0}', '{"subject":"s","mode":"READONLY"}'),
    (deletion_record("s", 2), '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', '{"subject":"s","version":2}'),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), CONFLUENT)
def test_records_have_confluents_form(record: StoredRecord, key: str, value: str | None) -> None:
    assert encode_key(record.key).decode() == key
    assert (None if record.value is None else to_bytes(record.value).decode()) == value
    assert decode_key(key.encode()) == record.key
    assert decode_value(None if value is None else value.encode()) == record.value


@pytest.mark.parametrize(
    "key",
    [
        "",
        "[]",
        "{",
        '{"keytype":"SCHEMA","subject":null}',
        '{"keytype":"CONFIG","subject":7}',
        '{"keytype":"SCHEMA","subject":"s","version":"1"}',
        "[" * 9999,
    ],
)
def test_a_malformed_key_is_reported(key: str) -> None:
    with pytest.raises(MalformedRecordError):
        decode_key(key.encode())


def test_a_key_of_another_kind_is_passed_over() -> None:
    assert decode_key(b'{"keytype":"CONTEXT","tenant":"t","context":"c","magic":0}') is None


def replayed(*records: StoredRecord) -> State:
    state = State()
    for record in records:
        state.replay(record.key, record.value)
    return state


def stored(subject: str, version: int, number: int, text: str = "x", **others: Any) -> StoredRecord:
    return schema_record(RegisteredSchema(subject, version, number, text, **others))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (Key(KeyType.SCHEMA, "s", 1), {"subject": "s"}),
        (Key(KeyType.SCHEMA, "s", 1), {"subject": "s", "version": [], "id": 1, "schema": ""}),
        (Key(KeyType.SCHEMA, "s", 1), {"subject": "s", "version": 1, "id": float("inf"), "schema": ""}),
        (Key(KeyType.SCHEMA, "s", 1), {"subject": "s", "version": 1, "id": 1, "schema": "", "references": [7]}),
        (Key(KeyType.DELETE_SUBJECT, "s"), {"version": "x"}),
        (Key(KeyType.CONFIG, "s"), {"compatibilityLevel": 7}),
        (Key(KeyType.MODE, None), {"mode": []}),
    ],
)
def test_a_malformed_value_changes_nothing(key: Key, value: dict[str, Any]) -> None:
    state = replayed(stored("s", 1, 1))
    with pytest.raises(MalformedRecordError):
        state.replay(key, value)
    assert [one.id for one in state.versions("s")] == [1]


def test_fields_that_are_not_understood_are_kept() -> None:
    value = {"subject": "s", "version": 1, "id": 1, "schema": "x", "ruleSet": {"a": [1]}, "deleted": False}
    state = replayed(StoredRecord(Key(KeyType.SCHEMA, "s", 1), value))
    _, records = changes.delete_version(state, "s", 1, permanent=False)
    assert records[0].value is not None
    assert records[0].value["ruleSet"] == {"a": [1]}


def test_a_subject_is_deleted_softly_then_for_good() -> None:
    state = replayed(stored("s", 1, 1), stored("s", 2, 2), stored("t", 1, 1), deletion_record("s", 2))
    assert state.subjects() == ["t"]
    assert state.subjects(deleted=True) == ["s", "t"]
    assert state.subjects(deleted_only=True) == ["s"]
    assert [one.version for one in state.versions("s", deleted=True)] == [1, 2]
    for version in (1, 2):
        state.replay(*tombstone("s", version))
    assert state.subjects(deleted=True) == ["t"]
    assert state.find_by_id(2) == []
    assert state.last_id == 2


def test_equal_content_has_one_id_and_versions_continue_after_deleted_ones() -> None:
    state = replayed(stored("s", 1, 1), stored("s", 2, 5, "y"), deletion_record("s", 2))
    again = changes.new_version(state, "s", Submission("x"), "x")
    assert (again.version, again.id) == (3, 1)
    assert changes.new_version(state, "t", Submission("z"), "z").id == 6


def test_references_are_found_both_ways() -> None:
    state = replayed(
        stored("a", 1, 1),
        stored("b", 1, 2, "y", references=(Reference("a", "a", 1),)),
        stored("c", 1, 3, "z", references=(Reference("b", "b", 1), Reference("a", "a", 1))),
    )
    source = changes.source_of(state, Submission("w", references=(Reference("c", "c", LATEST),)))
    assert [name for name, _ in source.references] == ["a", "b", "c"]
    assert {one.id for one in state.references_to("a", 1)} == {2, 3}
    for delete in (changes.delete_version, changes.delete_subject):
        with pytest.raises(RegistryError, match="One or more references exist"):
            delete(state, "a", *((1,) if delete is changes.delete_version else ()), permanent=False)


def test_a_schema_may_refer_to_one_version_by_two_names() -> None:
    """When such a schema was deleted, the replay of its record failed, at each request and after each restart."""
    twice = RegisteredSchema("t", 1, 2, "y", references=(Reference("a", "s", 1), Reference("b", "s", 1)))
    state = replayed(stored("s", 1, 1), schema_record(twice))
    assert state.references_to("s", 1) == [twice]
    state.replay(*schema_record(replace(twice, deleted=True)))
    assert state.references_to("s", 1) == []
    state.replay(*tombstone("t", 1))
    assert state.subjects(deleted=True) == ["s"]


def test_references_in_a_cycle_are_resolved_once() -> None:
    state = replayed(
        stored("a", 1, 1, references=(Reference("b", "b", 1),)), stored("b", 1, 2, references=(Reference("a", "a", 1),))
    )
    assert len(state.resolve((Reference("a", "a", 1),))) == 2


@pytest.mark.parametrize(
    ("text", "number"), [("latest", LATEST), ("-1", LATEST), ("1", 1), (str(2**31 - 1), 2**31 - 1)]
)
def test_versions_are_numbers_or_latest(text: str, number: int) -> None:
    assert changes.parse_version(text) == number


@pytest.mark.parametrize("text", ["0", "-2", "x", "", "1.0", str(2**31), "9" * 50, "٣"])
def test_other_versions_are_refused(text: str) -> None:
    with pytest.raises(RegistryError) as raised:
        changes.parse_version(text)
    assert (raised.value.code, raised.value.status) == (42202, 422)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([], 422),
        ({}, 42201),
        ({"schema": ""}, 42201),
        ({"schema": 7}, 42201),
        ({"schema": "x", "schemaType": 7}, 422),
        ({"schema": "x", "id": "7"}, 422),
        ({"schema": "x", "version": True}, 422),
        ({"schema": "x", "references": 7}, 422),
        ({"schema": "x", "references": [{"name": "n"}]}, 422),
        ({"schema": "x", "references": [{"name": "n", "subject": "s", "version": 1}] * 1_001}, 422),
    ],
)
def test_malformed_bodies_are_refused(body: Any, code: int) -> None:
    with pytest.raises(RegistryError) as raised:
        changes.submission_of(body)
    assert raised.value.code == code


def test_levels_and_modes_hold_for_a_subject_or_for_all() -> None:
    state = replayed(config_record(None, "FULL"), config_record("s", "NONE"), mode_record(None, "READONLY"))
    assert (state.level_of("s"), state.level_of("t"), state.mode_of("s")) == ("NONE", "FULL", "READONLY")
    state.replay(*config_record(None, None))
    state.replay(*mode_record("s", "READWRITE"))
    assert (state.level_of("t"), state.mode_of("s")) == ("BACKWARD", "READWRITE")
    state.replay(*mode_record(None, "READONLY_OVERRIDE"))
    assert state.mode_of("s") == "READONLY_OVERRIDE"


@pytest.mark.parametrize(
    ("level", "compared"),
    [("NONE", []), ("BACKWARD", [3]), ("FORWARD", [3]), ("FULL", [3]), ("BACKWARD_TRANSITIVE", [3, 2, 1]),
     ("FORWARD_TRANSITIVE", [3, 2, 1]), ("FULL_TRANSITIVE", [3, 2, 1])],
)  # fmt: skip
def test_a_level_selects_the_versions_to_compare(level: str, compared: list[int]) -> None:
    versions = [RegisteredSchema("s", number, number, "x") for number in (1, 2, 3)]
    assert [one.version for one in changes.to_compare(level, versions)] == compared


def code_of(call: Any, *arguments: Any, **options: Any) -> int:
    with pytest.raises(RegistryError) as raised:
        call(*arguments, **options)
    return raised.value.code


def test_deletions_that_are_refused() -> None:
    state = replayed(stored("s", 1, 1), stored("s", 2, 2), stored("gone", 1, 3), deletion_record("gone", 1))
    assert code_of(changes.delete_subject, state, "x", permanent=False) == 40401
    assert code_of(changes.delete_subject, state, "gone", permanent=False) == 40404
    assert code_of(changes.delete_subject, state, "s", permanent=True) == 40405
    assert code_of(changes.delete_version, state, "gone", 1, permanent=False) == 40406
    assert code_of(changes.delete_version, state, "s", 2, permanent=True) == 40407
    assert code_of(changes.delete_version, state, "s", 9, permanent=False) == 40402


def test_modes_that_refuse() -> None:
    state = replayed(stored("s", 1, 1), mode_record("s", "READONLY"), mode_record("i", "IMPORT"))
    assert code_of(changes.check_writable, state, "s") == 42205
    assert code_of(changes.set_level, state, "s", "NONE") == 42205
    assert code_of(changes.delete_subject, state, "s", permanent=False) == 42205
    assert code_of(changes.check_writable, state, "i", Submission("x")) == 42205
    assert code_of(changes.check_writable, state, "t", Submission("x", id=7)) == 42205
    assert code_of(changes.check_writable, state, "t", Submission("x", id=7, version=1)) == 42205
    assert code_of(changes.set_mode, state, None, "IMPORT", force=False) == 42205
    assert code_of(changes.set_mode, state, None, "x", force=False) == 42204
    assert code_of(changes.parse_level, 7) == 42203
    assert changes.set_mode(state, None, "import", force=True)[0] == "IMPORT"


def test_an_import_brings_ids_and_versions() -> None:
    state = replayed(stored("s", 1, 4), mode_record(None, "IMPORT"))
    found = changes.new_version(state, "t", Submission("y", id=9, version=3), "y")
    assert (found.id, found.version) == (9, 3)
    assert code_of(changes.new_version, state, "t", Submission("y", id=4), "y") == 42207


def test_no_id_is_assigned_that_a_serializer_cannot_write() -> None:
    state = replayed(stored("s", 1, 2**31 - 1), stored("t", 2**31 - 1, 1))
    assert code_of(changes.new_version, state, "new", Submission("y"), "y") == 50001
    assert changes.new_version(state, "new", Submission("x"), "x").id in (1, 2**31 - 1)
    assert code_of(changes.new_version, state, "t", Submission("x"), "x") == 50001
    state.replay(*mode_record(None, "IMPORT"))
    assert code_of(changes.new_version, state, "t", Submission("x", id=1), "x") == 50001


operations = st.lists(
    st.tuples(
        st.sampled_from(["register", "version", "subject", "version!", "subject!"]),
        st.sampled_from("ab"),
        st.integers(1, 4),
    ),
    max_size=30,
)


def test_a_last_id_that_another_program_wrote_is_checked() -> None:
    with pytest.raises(MalformedRecordError):
        replayed(StoredRecord(Key(KeyType.NOOP), {"lastId": "7"}))
    assert replayed(StoredRecord(Key(KeyType.NOOP), {"other": 1})).last_id == 0


@settings(max_examples=60)
@given(operations)
def test_any_changes_keep_ids_unique_and_a_replay_gives_the_same(given_operations: list[tuple[str, str, int]]) -> None:
    state, log, contents = State(), list[StoredRecord](), dict[int, str]()
    for kind, subject, number in given_operations:
        try:
            if kind == "register":
                schema = changes.new_version(state, subject, Submission(str(number)), str(number))
                assert contents.setdefault(schema.id, schema.text) == schema.text
                assert schema.version > max((one.version for one in state.versions(subject, deleted=True)), default=0)
                records = [schema_record(schema)]
            elif kind.startswith("version"):
                _, records = changes.delete_version(state, subject, number, permanent=kind.endswith("!"))
            else:
                _, records = changes.delete_subject(state, subject, permanent=kind.endswith("!"))
        except RegistryError:
            continue
        log += records
        for record in records:
            state.replay(*record)
    again = replayed(*(StoredRecord(one.key, json.loads(to_bytes(one.value))) for one in log))
    for subject in "ab":
        assert again.versions(subject, deleted=True) == state.versions(subject, deleted=True)
    assert again.last_id == state.last_id
    kept = {encode_key(one.key): one for one in log}.values()
    compacted = replayed(*(one for one in kept if one.value is not None))
    assert compacted.last_id == state.last_id, "compaction has taken tombstones, too: an id would be given again"
