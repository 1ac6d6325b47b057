"""Tidelog's schemas of stored records against the definitions in the jars of Kafka's coordinators and of its metadata
log."""

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
from tidelog.broker.coordinator.group.records import RECORD_TYPES
from tidelog.protocol.coordinator_records import group, share, streams, transaction
from tidelog.protocol.metadata_records import control_records
from tidelog.protocol.metadata_records import records as metadata
from tidelog.protocol.schema.fields import Message, version_range

SCHEMAS = {
    cls.__name__: cls
    for module in (group, share, streams, transaction, metadata, control_records)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls.__module__ == module.__name__
}
OF_METADATA = {cls.__name__ for cls in SCHEMAS.values() if cls.__module__ == metadata.__name__}
OF_QUORUM = {cls.__name__ for cls in SCHEMAS.values() if cls.__module__ == control_records.__name__}


@cache
def definitions() -> dict[str, Definition]:
    """Read the definitions of record keys and values, by name."""
    found = {}
    directory = Path(kafka_jars.broker_classpath().removesuffix("/*"))
    for jar_path in (
        *directory.glob("kafka-*-coordinator-*.jar"),
        *directory.glob("kafka-metadata-*.jar"),
        *directory.glob("kafka-clients-*.jar"),
    ):
        with zipfile.ZipFile(jar_path) as jar:
            for name in jar.namelist():
                if name.startswith(("common/message/", "common/metadata/")) and name.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE)
                    definition = json.loads(text)
                    normalize(definition.setdefault("fields", []))
                    for struct in definition.get("commonStructs", []):
                        normalize(struct["fields"])
                    found[definition["name"]] = definition
    return found


def normalize(fields: list[Definition]) -> None:
    """Add the versions of tagged fields, which definitions leave out, and write null defaults as text."""
    for field in fields:
        field.setdefault("versions", field.get("taggedVersions"))
        if "default" in field and field["default"] is None:
            field["default"] = "null"
        normalize(field.get("fields", []))


@pytest.mark.java
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schema_agrees_with_the_jar(name: str) -> None:
    cls, definition = SCHEMAS[name], definitions()[name]
    assert definition.get("apiKey", -1) == cls.API_KEY
    valid = version_range(definition["validVersions"])
    assert valid == cls.VERSIONS
    for version in versions(valid):
        declared, defined = declared_fields(cls, version), defined_fields(definition, version)
        declared = [field for field in declared if not is_ours(field.tag) and "deletions." not in field.path]
        assert declared == defined, f"{name} v{version}"
        assert cls.FLEXIBLE.has(version) == version_range(definition["flexibleVersions"]).has(version)


def is_ours(tag: int | None) -> bool:
    """Return whether a tagged field is one that Kafka skips: Tidelog's own."""
    return tag in (metadata.UNFINISHED_DELETIONS_TAG, metadata.FINISHED_DELETIONS_TAG)


def test_every_schema_is_found() -> None:
    """The modules hold what is compared above: an empty list would compare nothing."""
    assert len(SCHEMAS) >= 50, sorted(SCHEMAS)
    assert {"OffsetCommitKey", "ShareSnapshotValue", "StreamsGroupTopologyValue", "TransactionLogValue"} <= set(SCHEMAS)
    assert {"RegisterBrokerRecord", "TopicRecord"} <= OF_METADATA
    assert {"LeaderChangeMessage", "VotersRecord"} <= OF_QUORUM


@pytest.mark.java
def test_every_kind_of_metadata_record_is_declared() -> None:
    defined = {name: one["apiKey"] for name, one in definitions().items() if one["type"] == "metadata"}
    assert defined == {cls.__name__: number for number, cls in metadata.RECORD_TYPES.items()}


@pytest.mark.java
def test_every_kind_of_record_of_groups_is_declared() -> None:
    kinds = {
        definition["apiKey"]
        for name, definition in definitions().items()
        if name.endswith("Key") and not name.startswith(("ShareSnapshot", "ShareUpdate", "Transaction"))
    }
    assert kinds == set(RECORD_TYPES)
