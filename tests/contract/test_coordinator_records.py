"""Our record schemas against the definitions inside the jars of Kafka's three coordinators."""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from pathlib import Path

import pytest

from tests.contract.test_messages import Definition, declared_fields, defined_fields
from tests.support import kafka_jars
from tests.support.messages import versions
from tidelog.broker.coordinator.group import records as group_records
from tidelog.broker.coordinator.share_state import records as share_records
from tidelog.broker.coordinator.transaction import records as transaction_records
from tidelog.protocol.coordinator_records import streams as streams_records
from tidelog.protocol.schema.fields import Message, version_range

SCHEMAS = {
    cls.__name__: cls
    for module in (group_records, share_records, streams_records, transaction_records)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls.__module__ == module.__name__
}


@cache
def definitions() -> dict[str, Definition]:
    """The definitions of record keys and values by name."""
    found = {}
    directory = Path(kafka_jars.broker_classpath().removesuffix("/*"))
    for jar_path in directory.glob("kafka-*-coordinator-*.jar"):
        with zipfile.ZipFile(jar_path) as jar:
            for name in jar.namelist():
                if name.startswith("common/message/") and name.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE)
                    definition = json.loads(text)
                    normalize(definition["fields"])
                    for struct in definition.get("commonStructs", []):
                        normalize(struct["fields"])
                    found[definition["name"]] = definition
    return found


def normalize(fields: list[Definition]) -> None:
    """Say what these definitions leave to be understood: versions of tagged fields; and null as text, as elsewhere."""
    for field in fields:
        field.setdefault("versions", field.get("taggedVersions"))
        if "default" in field and field["default"] is None:
            field["default"] = "null"
        normalize(field.get("fields", []))


@pytest.mark.java
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schema_agrees_with_the_jar(name: str) -> None:
    cls, definition = SCHEMAS[name], definitions()[name]
    assert definition["apiKey"] == cls.API_KEY
    valid = version_range(definition["validVersions"])
    assert valid == cls.VERSIONS
    for version in versions(valid):
        assert declared_fields(cls, version) == defined_fields(definition, version), f"{name} v{version}"
        assert cls.FLEXIBLE.has(version) == version_range(definition["flexibleVersions"]).has(version)


@pytest.mark.java
def test_every_kind_of_record_of_groups_is_declared() -> None:
    kinds = {
        definition["apiKey"]
        for name, definition in definitions().items()
        if name.endswith("Key") and not name.startswith(("ShareSnapshot", "ShareUpdate", "Transaction"))
    }
    assert kinds == set(group_records.RECORD_TYPES)
