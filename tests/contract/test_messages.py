"""Tidelog's declarations against the message definitions inside the published kafka-clients jars.

For every declared message and every version that a jar defines, both sides are reduced to the same flat list: path,
type, whether null is allowed, tag and default of each field, in the order of the wire. Kafka 4.3 gives the newest
versions, Kafka 3.9 the oldest.
"""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from typing import Any, NamedTuple

import pytest

from tests.support import kafka_jars
from tests.support.messages import all_messages, versions
from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION, ApiKey
from tidelog.protocol.schema.fields import MAX_VERSION, Field, Message, Struct, VersionRange, version_range
from tidelog.protocol.types import ZERO_UUID

MESSAGES = {cls.__name__: cls for cls in all_messages()}
JARS = (kafka_jars.KAFKA_4, kafka_jars.KAFKA_3)


class WireField(NamedTuple):
    """One field at one version. ``default`` is None for null, ``tag`` is None for fields in sequence."""

    path: str
    kind: str
    nullable: bool
    tag: int | None
    default: Any


Definition = dict[str, Any]


@cache
def definitions(kafka_version: str) -> dict[str, Definition]:
    """Read the definitions in a jar, by message name."""
    found = {}
    with zipfile.ZipFile(kafka_jars.clients_jar(kafka_version)) as jar:
        for name in jar.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE)
                definition = json.loads(text)
                found[definition["name"]] = definition
    return found


def valid_versions(name: str, kafka_version: str) -> VersionRange:
    """Return the versions a jar defines, without one that Kafka 3.9 marks as unstable: 4.x changed those at will."""
    declared = version_range(definitions(kafka_version)[name]["validVersions"])
    request = definitions(kafka_version).get(name.replace("Response", "Request"), {})
    if kafka_version == kafka_jars.KAFKA_3 and request.get("latestVersionUnstable"):
        return declared._replace(highest=declared.highest - 1)
    return declared


def snake_case(name: str) -> str:
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def defined_fields(definition: Definition, version: int) -> list[WireField]:
    """List Kafka's fields of a message at a version."""
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}
    flexible = _has(definition["flexibleVersions"], version)
    return list(_walk_defined(definition["fields"], "", version, flexible, common))


def _has(text: str | None, version: int) -> bool:
    return version_range(text or "none").has(version)


def _walk_defined(fields: list[Definition], path: str, version: int, flexible: bool, common: Definition) -> Any:
    for field in fields:
        if not _has(field["versions"], version):
            continue
        name = f"{path}{snake_case(field['name'])}"
        bare = field["type"].removeprefix("[]")
        nested = field.get("fields") or common.get(bare)
        kind = field["type"] if nested is None else field["type"].replace(bare, "struct")
        tagged = flexible and _has(field.get("taggedVersions"), version)
        nullable = _has(field.get("nullableVersions"), version)
        default = _defined_default(field, kind, nullable)
        yield WireField(name, kind, nullable, int(field["tag"]) if tagged else None, default)
        if nested is not None:
            yield from _walk_defined(nested, f"{name}.", version, flexible, common)


def _defined_default(field: Definition, kind: str, nullable: bool) -> Any:
    text = field.get("default")
    if kind == "records":
        return None if nullable else b""
    if text == "null":
        return None
    if kind.startswith("[]") or kind == "struct":
        return ()
    if kind in ("string", "bytes", "uuid"):
        return text if text else {"string": "", "bytes": b"", "uuid": ZERO_UUID}[kind]
    if kind == "bool":
        return str(text).lower() == "true"
    return float(text or 0) if kind == "float64" else int(str(text or 0), 0)


def declared_fields(cls: type[Message], version: int) -> list[WireField]:
    """List our fields of a message at a version."""
    return list(_walk_declared(cls, "", version, cls.FLEXIBLE.has(version)))


def _walk_declared(cls: type[Struct], path: str, version: int, flexible: bool) -> Any:
    for field in cls.FIELDS:
        if not field.versions.has(version):
            continue
        name = f"{path}{field.name}"
        item = field.item
        kind = field.kind
        if kind == "array":
            kind = f"[]{item.kind}" if isinstance(item, Field) else "[]struct"
        tag = field.tag if flexible else None
        yield WireField(name, kind, field.nullable.has(version), tag, field.default)
        if isinstance(item, type):
            yield from _walk_declared(item, f"{name}.", version, flexible)


@pytest.mark.parametrize("kafka_version", JARS)
@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_declaration_agrees_with_the_jar(name: str, kafka_version: str) -> None:
    cls = MESSAGES[name]
    definition = definitions(kafka_version).get(name)
    if definition is None:
        assert kafka_version == kafka_jars.KAFKA_3, f"{name} is not in Kafka {kafka_version}"
        return
    assert definition.get("apiKey", -1) == cls.API_KEY
    for version in versions(valid_versions(name, kafka_version)):
        assert cls.VERSIONS.has(version)
        assert declared_fields(cls, version) == defined_fields(definition, version), f"{name} v{version}"
        assert cls.FLEXIBLE.has(version) == _has(definition["flexibleVersions"], version)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_declared_versions_are_those_of_both_jars(name: str) -> None:
    ranges = [valid_versions(name, kafka_version) for kafka_version in JARS if name in definitions(kafka_version)]
    every = {version for declared in ranges for version in versions(declared)}
    assert VersionRange(min(every), max(every)) == MESSAGES[name].VERSIONS


def test_every_api_of_a_broker_listener_is_declared() -> None:
    served = {
        name
        for name, definition in definitions(kafka_jars.KAFKA_4).items()
        if definition["type"] == "request"
        and definition["validVersions"] != "none"
        and "broker" in definition.get("listeners", [])
    }
    assert served - set(MESSAGES) == set()
    responses = {name.replace("Request", "Response") for name in served}
    assert responses - set(MESSAGES) == set()


def test_api_keys_are_those_of_both_jars() -> None:
    keys = {
        definition["apiKey"]: snake_case(name.removesuffix("Request")).upper()
        for kafka_version in reversed(JARS)
        for name, definition in definitions(kafka_version).items()
        if definition["type"] == "request"
    }
    assert {key.value: key.name for key in ApiKey} == keys


def test_first_flexible_versions_are_those_of_both_jars() -> None:
    for kafka_version in JARS:
        for definition in definitions(kafka_version).values():
            if definition["type"] == "request" and definition["validVersions"] != "none":
                flexible = version_range(definition["flexibleVersions"])
                never = flexible.highest < flexible.lowest
                first = FIRST_FLEXIBLE_VERSION[definition["apiKey"]]
                assert first == (MAX_VERSION + 1 if never else flexible.lowest), definition["name"]


def test_names_of_structs_are_kafkas() -> None:
    """A struct name that request and response share has the suffix "Response" in the response."""
    for name, cls in MESSAGES.items():
        ours = {struct.__name__ for struct in _structs(cls)}
        theirs = set()
        for kafka_version in JARS:
            if name in definitions(kafka_version):
                text = json.dumps(definitions(kafka_version)[name])
                theirs |= set(re.findall(r'"type": "(?:\[\])?([A-Z]\w*)"', text))
        assert {struct for struct in ours if not _is_kafkas(struct, theirs)} == set(), name


def _is_kafkas(name: str, theirs: set[str]) -> bool:
    return name in theirs or (name.endswith("Response") and name.removesuffix("Response") in theirs)


def _structs(cls: type[Struct]) -> set[type[Struct]]:
    found: set[type[Struct]] = set()
    for field in cls.FIELDS:
        if isinstance(field.item, type):
            found |= {field.item} | _structs(field.item)
    return found
