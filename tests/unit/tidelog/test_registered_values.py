"""Values with schemas of a registry, as ``produce`` reads and ``consume`` prints them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli import main
from tidelog.client import ClientError
from tidelog.commands.frame.records import RecordFormatError
from tidelog.commands.records.consume import line_maker
from tidelog.commands.records.produce import Fields, record_of
from tidelog.commands.records.registered import RegisteredValues
from tidelog.find import FoundRecord
from tidelog.pipeline.values.registry import RegisteredSchema, Registry, UndecodableError

ORDER = RegisteredSchema(
    7, "AVRO", '{"type": "record", "name": "Order", "fields": [{"name": "name", "type": "string"}]}'
)


class KnownSchemas(Registry):
    """A registry that has its schemas here: by id, and each as the newest of its subject."""

    def __init__(self, *schemas: RegisteredSchema) -> None:
        super().__init__((("url", "http://none"),))
        object.__setattr__(self, "known", {one.id: one for one in schemas})

    def schema_by_id(self, number: int) -> RegisteredSchema:
        found: RegisteredSchema | None = self.known.get(number)  # type: ignore[attr-defined]
        if found is None:
            raise UndecodableError(f"the registry has no schema {number}")
        return found

    def latest_schema(self, subject: str) -> RegisteredSchema:
        if subject != "orders-value":
            raise UndecodableError(f"the registry has no subject {subject}")
        return self.schema_by_id(7)


@pytest.fixture
def values() -> RegisteredValues:
    return RegisteredValues(KnownSchemas(ORDER, RegisteredSchema(8, "JSON", "{}")), "AVRO")


def fields(form: str, values: RegisteredValues) -> Fields:
    return Fields(form, None, None, (), None, False, values)


def found(value: bytes | None) -> FoundRecord:
    return FoundRecord("orders", 0, 5, -1, b"k", value, ())


@pytest.mark.parametrize("form", ["json", "value", "text"])
def test_consumed_values_can_be_produced(values: RegisteredValues, form: str) -> None:
    values.choose("orders", None, None)
    value = record_of(b'{"name": "\xc3\xa4"}', fields("lines", values)).value
    assert value == b"\0\0\0\0\7\4\xc3\xa4"
    line = line_maker(form, values)(found(value))
    if form == "text":
        assert line.decode() == 'orders-0@5\t-\tk\t{"name": "ä"}'
    else:
        assert record_of(line, fields("json" if form == "json" else "lines", values)).value == value


def test_a_tombstone_has_no_schema(values: RegisteredValues) -> None:
    line = line_maker("json", values)(found(None))
    assert json.loads(line)["value"] is None
    assert record_of(line, fields("json", values)).value is None


def test_a_value_in_bytes_is_no_tombstone(values: RegisteredValues) -> None:
    values.choose("orders", None, None)
    with pytest.raises(RecordFormatError, match="under value"):
        record_of(b'{"key": "k", "value_base64": "/w=="}', fields("json", values))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"plain", "it does not begin with the id of a schema"),
        (b"\0\0\0\0\x09x", "the registry has no schema 9"),
        (b"\0\0\0\0\x08{}", "schema 8 is JSON, expected AVRO"),
        (b"\0\0\0\0\x07", "it is not of schema 7"),
    ],
)
def test_a_value_that_is_not_of_its_schema_is_named_with_its_place(
    values: RegisteredValues, value: bytes, message: str
) -> None:
    with pytest.raises(ClientError, match=rf"orders-0@5: the value: {message}"):
        line_maker("json", values)(found(value))


@pytest.mark.parametrize("line", [b"{", b'{"nom": "a"}'])
def test_a_line_that_is_not_of_the_schema_is_refused(values: RegisteredValues, line: bytes) -> None:
    values.choose("orders", None, 7)
    with pytest.raises(ClientError):
        record_of(line, fields("lines", values))


def test_a_topic_without_a_schema_is_named(values: RegisteredValues) -> None:
    with pytest.raises(ClientError, match="the registry has no subject others-value"):
        values.choose("others", None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["consume", "t", "--value-format", "avro"], "expected --registry URL with it"),
        (
            ["consume", "t", "--value-format", "avro", "--registry", "http://x", "--format", "hex"],
            "without --format hex",
        ),
        (["produce", "t", "--value-schema-id", "3"], "expected it with --value-format"),
        (["consume", "t", "--value-format", "text"], "'text' is not one of"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("package", ["confluent_kafka.schema_registry", "fastavro"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    values: RegisteredValues, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    absent: Any = None
    monkeypatch.setitem(sys.modules, package, absent)
    fresh = RegisteredSchema(17, "AVRO", '"string"')  # a form that no other test has built
    registry = KnownSchemas(fresh) if package == "fastavro" else Registry((("url", "http://127.0.0.1:1/missing"),))
    with pytest.raises(ClientError, match=r"is not installed: pip install 'tidelog\[registry\]'"):
        RegisteredValues(registry, "AVRO").choose("orders", None, 17)
