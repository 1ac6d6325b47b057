"""The schema registry's HTTP interface over a broker's parts, through a socket in the test's directory."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from tests.support.http_apps import serving
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.replica.partition import Partition
from tidelog.broker.schema_registry import app as app_module
from tidelog.broker.schema_registry import service as service_module
from tidelog.broker.schema_registry import topic as topic_module
from tidelog.broker.schema_registry.app import CONTENT_TYPE, serve
from tidelog.broker.schema_registry.formats.formats import parse
from tidelog.broker.schema_registry.formats.schema import ParsedSchema, Source
from tidelog.broker.schema_registry.records import StoredRecord, decode_key, decode_value
from tidelog.broker.schema_registry.service import compatibility_faults, find_equal
from tidelog.broker.schema_registry.topic import (
    CONFIGS,
    REPLAYED_PER_TURN,
    TOPIC,
    SchemasTopic,
    decode_chunk,
    read_chunk,
)
from tidelog.broker.security.principal import ANONYMOUS
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.metadata_records.records import AccessControlEntryRecord
from tidelog.protocol.record.record_batch import Record, build_batch

A = '{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'
AB = '{"type":"record","name":"A","fields":[{"name":"a","type":"int"},{"name":"b","type":"int","default":1}]}'
B = '{"type":"record","name":"A","fields":[{"name":"b","type":"int"}]}'


class Client:
    """A client of the registry over ``parts``."""

    def __init__(self, parts: DataBroker, session: aiohttp.ClientSession) -> None:
        self.parts = parts
        self.session = session

    async def ask(self, method: str, path: str, body: Any = None, content_type: str = CONTENT_TYPE) -> tuple[int, Any]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        async with self.session.request(method, f"http://registry{path}", data=data, headers=headers) as response:
            assert response.content_type == CONTENT_TYPE
            return response.status, json.loads(await response.text())

    async def get(self, path: str) -> Any:
        status, found = await self.ask("GET", path)
        assert status == 200, found
        return found

    async def register(self, subject: str, text: str, **others: Any) -> Any:
        status, found = await self.ask("POST", f"/subjects/{subject}/versions", {"schema": text, **others})
        return found["id"] if status == 200 else found["error_code"]

    @property
    def partition(self) -> Partition:
        return self.parts.replica_manager.partition(TOPIC, 0)

    def records(self) -> list[StoredRecord]:
        return read_chunk(self.partition, 0).records

    def allow(self, *operations: AclOperation) -> None:
        """Allow clients without a login these operations on the topic."""
        for operation in operations:
            record = AccessControlEntryRecord(
                id=uuid4().bytes, resource_type=ResourceType.TOPIC, resource_name=TOPIC,
                pattern_type=PatternType.LITERAL, principal=str(ANONYMOUS), host="*", operation=operation,
                permission_type=AclPermissionType.ALLOW,
            )  # fmt: skip
            self.parts.broker.controller.commit([VersionedRecord(record)])

    def append(self, *pairs: tuple[bytes, bytes | None]) -> None:
        """Append a record as another program does."""
        records = [Record(number, 1_700_000_000_000, key, value) for number, (key, value) in enumerate(pairs)]
        self.partition.append_records(memoryview(build_batch(records)))


@asynccontextmanager
async def registry(
    directory: Path, *, policy: str = CONFIGS["cleanup.policy"], **settings: str
) -> AsyncIterator[Client]:
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    parts = DataBroker(
        directory, {"admin.allowed.hosts": "registry", "schema.registry.listener": "127.0.0.1:1", **texts}
    )
    with ThreadPoolExecutor(2) as executor:
        parts.broker = replace(parts.broker, loop=asyncio.get_running_loop(), executor=executor)
        with opening_expected():
            if TOPIC not in parts.broker.metadata.topics:
                create_topic(parts, TOPIC, 1, 1, {"cleanup.policy": policy})
            parts.replica_manager.partition(TOPIC, 0).open()
        try:
            async with serving(serve, parts.broker, directory / "registry") as session:
                yield Client(parts, session)
        finally:
            parts.close()


async def test_a_schema_is_registered_once_and_found(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        assert await client.get("/") == {}
        assert await client.get("/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]
        assert await client.get("/subjects") == []
        assert await client.register("s", A) == 1
        assert await client.register("s", A.replace(",", " , ")) == 1
        assert await client.register("t%2Fu", A) == 1
        assert await client.register("s", AB) == 2
        assert await client.get("/subjects") == ["s", "t/u"]
        assert await client.get("/subjects?subjectPrefix=t") == ["t/u"]
        assert await client.get("/subjects?offset=1&limit=1") == ["t/u"]
        assert await client.get("/subjects/s/versions") == [1, 2]
        whole = {"subject": "s", "version": 2, "id": 2, "schema": AB}
        assert await client.get("/subjects/s/versions/2") == await client.get("/subjects/s/versions/latest") == whole
        assert await client.get("/subjects/s/versions/2/schema") == json.loads(AB)
        assert await client.get("/schemas/ids/2") == {"schema": AB}
        assert await client.get("/schemas/ids/2?fetchMaxId=true") == {"schema": AB, "maxId": 2}
        assert await client.get("/schemas/ids/1/schema") == json.loads(A)
        assert await client.get("/schemas/ids/1/subjects") == ["s", "t/u"]
        assert (await client.get("/schemas/ids/1/versions"))[0] == {"subject": "s", "version": 1}
        assert len(await client.get("/schemas")) == 3
        assert len(await client.get("/schemas?latestOnly=true")) == 2
        assert await client.get("/contexts") == ["."]
        assert await client.ask("POST", "/subjects/s", {"schema": AB}) == (200, whole)


ERRORS: list[tuple[str, str, Any, int, int]] = [
    ("GET", "/nothing", None, 404, 404),
    ("PATCH", "/subjects", None, 405, 405),
    ("GET", "/schemas/ids/99", None, 404, 40403),
    ("GET", "/schemas/ids/x", None, 404, 404),
    ("GET", "/subjects/none/versions", None, 404, 40401),
    ("GET", "/subjects/none/versions/1", None, 404, 40401),
    ("GET", "/subjects/s/versions/9", None, 404, 40402),
    ("GET", "/subjects/s/versions/0", None, 422, 42202),
    ("GET", "/subjects?offset=x", None, 422, 422),
    ("POST", "/subjects/s", {"schema": B}, 404, 40403),
    ("POST", "/subjects/none", {"schema": B}, 404, 40401),
    ("POST", "/subjects/s/versions", {"schema": "{"}, 422, 42201),
    ("POST", "/subjects/s/versions", {"schema": "{}", "schemaType": "XML"}, 422, 42201),
    ("POST", "/subjects/s/versions", {"schema": B}, 409, 409),
    ("POST", "/subjects/s/versions", {"schema": "[" * 100_000}, 422, 42201),
    ("POST", "/subjects/s/versions", b"{", 400, 400),
    ("POST", "/subjects/s/versions", b"[" * 100_000, 400, 400),
    ("POST", "/subjects/s/versions", {"schema": A, "references": [{"name": "r", "subject": "r", "version": 1}]},
     422, 42201),
    ("POST", "/compatibility/subjects/s/versions/9", {"schema": A}, 404, 40402),
    ("POST", "/compatibility/subjects/none/versions/1", {"schema": A}, 404, 40401),
    ("GET", "/config/s", None, 404, 40408),
    ("GET", "/mode/s", None, 404, 40409),
    ("PUT", "/config", {"compatibility": "SOME"}, 422, 42203),
    ("PUT", "/config", [], 422, 422),
    ("PUT", "/mode", {"mode": "SOME"}, 422, 42204),
    ("DELETE", "/config/s", None, 404, 40401),
    ("DELETE", "/mode/s", None, 404, 40401),
    ("DELETE", "/subjects/s?permanent=true", None, 404, 40405),
    ("DELETE", "/subjects/none", None, 404, 40401),
    ("DELETE", "/subjects/s/versions/1?permanent=true", None, 404, 40407),
]  # fmt: skip


async def test_bad_requests_get_confluents_codes(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("s", A)
        end = client.partition.log_end_offset
        for method, path, body, status, code in ERRORS:
            found = await client.ask(method, path, body)
            assert (found[0], found[1]["error_code"]) == (status, code), (method, path, found)
            assert found[1]["message"]
        found = await client.ask("POST", "/subjects/s/versions", b"{}", "text/xml")
        assert (found[0], found[1]["error_code"]) == (415, 415)
        assert client.partition.log_end_offset == end, "a refused request writes nothing"


async def test_compatibility_levels_hold(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("s", A)
        check, body = "/compatibility/subjects/s/versions", {"schema": B}
        assert await client.ask("POST", check, body) == (200, {"is_compatible": False})
        verbose = (await client.ask("POST", f"{check}/latest?verbose=true", body))[1]
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in verbose["messages"][0]
        assert (await client.ask("POST", f"{check}/1", {"schema": AB}))[1] == {"is_compatible": True}
        assert (await client.ask("POST", "/compatibility/subjects/new/versions/latest", body))[1]["is_compatible"]
        for level, code in (("full", 409), ("FORWARD_TRANSITIVE", 409), ("NONE", 2)):
            assert await client.ask("PUT", "/config/s", {"compatibility": level}) == (
                200,
                {"compatibility": level.upper()},
            )
            assert await client.register("s", B) == code
        assert await client.get("/config/s") == {"compatibilityLevel": "NONE"}
        assert await client.get("/config/t?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
        assert (await client.ask("DELETE", "/config/s"))[1]["compatibilityLevel"] == "NONE"
        await client.ask("PUT", "/config", {"compatibility": "FULL"})
        assert await client.get("/config") == {"compatibilityLevel": "FULL"}


async def test_modes_hold(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        assert await client.get("/mode") == {"mode": "READWRITE"}
        await client.ask("PUT", "/mode/s", {"mode": "readonly"})
        assert await client.register("s", A) == 42205
        assert await client.get("/mode/s") == {"mode": "READONLY"}
        assert await client.ask("DELETE", "/mode/s") == (200, {"mode": "READONLY"})
        await client.ask("PUT", "/mode", {"mode": "IMPORT"})
        assert await client.register("s", A, id=70, version=5) == 70
        assert (await client.get("/subjects/s/versions")) == [5]
        assert await client.register("t", B, id=70) == 42207
        assert await client.get("/mode/s?defaultToGlobal=true") == {"mode": "IMPORT"}


async def test_a_level_is_refused_in_read_only_mode_with_the_place_of_the_mode(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.ask("PUT", "/mode", {"mode": "READONLY"})
        for path, place in (("/config", "The registry"), ("/config/s", "Subject s")):
            _, answer = await client.ask("PUT", path, {"compatibility": "FULL"})
            assert answer == {"error_code": 42205, "message": f"{place} is in read-only mode"}


async def test_a_read_only_subject_keeps_its_level_and_gives_out_the_ids_that_it_has(tmp_path: Path) -> None:
    """Producers with automatic registration go on, as with Confluent's registry."""
    async with registry(tmp_path) as client:
        assert await client.register("s", A) == 1
        await client.ask("PUT", "/config/s", {"compatibility": "FULL"})
        await client.ask("PUT", "/mode/s", {"mode": "READONLY"})
        assert await client.register("s", A) == 1
        assert await client.register("s", AB) == 42205
        assert (await client.ask("DELETE", "/config/s"))[1]["error_code"] == 42205
        assert await client.get("/config/s") == {"compatibilityLevel": "FULL"}


async def test_an_id_is_refused_outside_of_an_import_unless_it_is_that_of_the_schema(tmp_path: Path) -> None:
    """With a version beside the id the schema was registered a second time, with another id."""
    async with registry(tmp_path) as client:
        assert await client.register("s", A) == 1
        assert await client.register("s", A, id=1, version=1) == 1
        assert await client.register("s", A, id=7, version=2) == 42205
        assert await client.get("/subjects/s/versions") == [1]


async def test_an_import_may_refer_to_a_deleted_version(tmp_path: Path) -> None:
    """An exporter sends versions first, and their deletions after them or before what refers to them."""
    async with registry(tmp_path) as client:
        await client.register("inner", A)
        await client.ask("DELETE", "/subjects/inner/versions/1")
        await client.ask("PUT", "/mode/outer", {"mode": "IMPORT"})
        assert await client.register("outer", U, references=to_a(1), id=9, version=3) == 9
        assert (await client.get("/subjects/outer/versions/3"))["references"] == to_a(1)
        assert (await client.ask("DELETE", "/subjects/inner/versions/1?permanent=true"))[1]["error_code"] == 42206


async def test_a_context_is_no_subject(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        assert await client.register(":.shop:", A) == 42208
        assert await client.get("/contexts") == ["."]


async def test_deletions_are_soft_and_then_for_good(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("s", A)
        await client.register("s", AB)
        assert await client.ask("DELETE", "/subjects/s/versions/1") == (200, 1)
        assert await client.get("/subjects/s/versions") == [2]
        assert await client.get("/subjects/s/versions?deleted=true") == [1, 2]
        assert await client.get("/subjects/s/versions?deletedOnly=true") == [1]
        assert (await client.get("/subjects/s/versions/1?deleted=true"))["id"] == 1
        assert await client.ask("DELETE", "/subjects/s") == (200, [2])
        assert await client.get("/subjects") == []
        assert await client.get("/subjects?deleted=true") == ["s"]
        assert await client.get("/schemas/ids/2") == {"schema": AB}
        assert await client.ask("DELETE", "/subjects/s/versions/1?permanent=true") == (200, 1)
        assert await client.ask("DELETE", "/subjects/s?permanent=true") == (200, [2])
        assert await client.get("/subjects?deleted=true") == []
        assert await client.register("s", B) == 3


async def test_references_are_kept_and_prevent_deletion_of_their_targets(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("inner", '{"type":"object"}', schemaType="JSON")
        references = [{"name": "inner.json", "subject": "inner", "version": 1}]
        outer = '{"$ref":"inner.json"}'
        assert await client.register("outer", outer, schemaType="JSON", references=references) == 2
        found = await client.get("/subjects/outer/versions/1")
        assert (found["references"], found["schemaType"]) == (references, "JSON")
        assert await client.get("/subjects/inner/versions/1/referencedby") == [2]
        assert (await client.ask("DELETE", "/subjects/inner"))[1]["error_code"] == 42206


U = '{"type":"record","name":"U","fields":[{"name":"a","type":"A"}]}'


def to_a(version: int) -> list[dict[str, Any]]:
    return [{"name": "A", "subject": "inner", "version": version}]


async def test_a_reference_to_the_latest_version_is_kept_as_its_number(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("inner", A)
        assert await client.register("outer", U, references=to_a(-1)) == 2
        assert (await client.get("/subjects/outer/versions/1"))["references"] == to_a(1)
        assert (await client.ask("DELETE", "/subjects/inner"))[1]["error_code"] == 42206
        await client.register("inner", AB)
        body = {"schema": U, "references": to_a(1)}
        assert (await client.ask("POST", "/subjects/outer", body))[1]["version"] == 1


async def test_nothing_new_refers_to_a_deleted_version(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("inner", A)
        await client.register("inner", AB)
        assert await client.ask("DELETE", "/subjects/inner/versions/1") == (200, 1)
        assert await client.register("outer", U, references=to_a(1)) == 42201
        assert await client.register("outer", U, references=to_a(2)) == 3


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_reference_that_is_deleted_while_the_schema_is_read_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """In its place another schema may come under the same number."""
    loop = asyncio.get_running_loop()
    # The registry has one thread for schemas: the other registration reads its own in a second one.
    monkeypatch.setattr(service_module, "ThreadPoolExecutor", lambda _, **names: ThreadPoolExecutor(2, **names))
    async with registry(tmp_path) as client:
        await client.register("inner", A)

        async def change() -> None:
            monkeypatch.undo()
            for path in ("/subjects/inner", "/subjects/inner?permanent=true"):
                assert await client.ask("DELETE", path) == (200, [1])
            if comes_back:
                await client.register("inner", A.replace('"A"', '"Other"'))

        def parse_late(source: Source) -> ParsedSchema:
            asyncio.run_coroutine_threadsafe(change(), loop).result(60)
            return parse(source)

        monkeypatch.setattr(service_module, "parse", parse_late)
        assert await client.register("outer", U, references=to_a(1)) == 42201
        assert await client.get("/subjects") == (["inner"] if comes_back else [])


@pytest.mark.parametrize(
    "body",
    [
        {"schema": '{"type":"record","name":"A","doc":"\\ud800","fields":[]}'},
        {"schema": '{"type":"record","name":"A","doc":"\ud800","fields":[]}'},
        {"schema": '{"title":"\\udfff"}', "schemaType": "JSON"},
        {"schema": 'syntax = "proto3"; message A {} // \ud800', "schemaType": "PROTOBUF"},
        {"schema": '{"$schema":5}', "schemaType": "JSON"},
    ],
)
async def test_a_schema_that_cannot_be_encoded_is_refused(tmp_path: Path, body: dict[str, str]) -> None:
    async with registry(tmp_path) as client:
        assert (await client.ask("POST", "/subjects/s/versions", body))[1]["error_code"] == 42201
        assert await client.get("/schemas") == []


async def test_a_record_with_a_lone_surrogate_does_not_stop_the_registry(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("s", A)
        key = b'{"keytype":"SCHEMA","subject":"t","version":1,"magic":1}'
        client.append((key, b'{"subject":"t","version":1,"id":7,"schema":"\\"\\ud800\\"","deleted":false}'))
        assert [one["subject"] for one in await client.get("/schemas")] == ["s", "t"]
        assert await client.get("/schemas/ids/7/schema") == "?"


async def test_all_schemas_are_written_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def shown(schema: Any) -> Any:
        threads.add(current_thread())
        return app_shown(schema)

    app_shown = app_module.describe_version
    monkeypatch.setattr(app_module, "describe_version", shown)
    async with registry(tmp_path) as client:
        await client.register("s", A)
        assert len(await client.get("/schemas")) == 1
    assert threads
    assert main_thread() not in threads


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_nothing_is_registered_in_a_topic_that_loses_records(tmp_path: Path, policy: str) -> None:
    """Such as one that a consumer's question made: retention would take the schemas after a week."""
    async with registry(tmp_path, policy=policy) as client:
        status, found = await client.ask("POST", "/subjects/s/versions", {"schema": A})
        assert (status, found["error_code"]) == (500, 50001)
        assert "cleanup.policy" in found["message"]
        assert client.records() == []


async def test_a_restart_keeps_all_and_ids_continue(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        await client.register("s", A)
        await client.ask("PUT", "/config/s", {"compatibility": "NONE"})
    async with registry(tmp_path) as client:
        assert await client.get("/subjects/s/versions") == [1]
        assert await client.register("s", B) == 2


async def test_records_of_another_registry_are_read(tmp_path: Path) -> None:
    """Confluent's registry writes the same topic; equal schemas may have other texts there."""
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    text = json.dumps(A.replace(",", ", "))
    async with registry(tmp_path) as client:
        client.append(
            (b'{"keytype":"NOOP","magic":0}', None),
            (key, b'{"subject":"s","version":1,"id":41,"schema":%b,"deleted":false}' % text.encode()),
            (b'{"keytype":"CONTEXT","magic":0}', b"{}"),
            (b"no JSON", b"{}"),
            (b'{"keytype":"SCHEMA","subject":"t","version":1,"magic":1}', b'{"subject":"t"}'),
        )
        assert await client.get("/subjects") == ["s"]
        assert await client.register("s", A) == 41
        assert await client.register("s", AB) == 42
        client.append((key, None))
        assert await client.get("/subjects/s/versions") == [2]
        assert [decode_key(b"{}"), decode_value(None)] == [None, None]


async def test_references_of_another_registrys_records_are_to_their_own_context(tmp_path: Path) -> None:
    """Confluent's registry stores a reference as the client sent it."""
    inner, other = A, '{"type":"enum","name":"A","symbols":[]}'
    schemas = [("inner", 1, other, []), (":.shop:inner", 2, inner, []), (":.shop:near", 3, U, to_a(1)),
               (":.shop:far", 4, U, [{**to_a(1)[0], "subject": ":.:inner"}])]  # fmt: skip
    async with registry(tmp_path) as client:
        for subject, number, text, references in schemas:
            key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
            value = {"subject": subject, "version": 1, "id": number, "schema": text, "references": references}
            client.append((json.dumps(key).encode(), json.dumps(value).encode()))
        assert await client.get("/subjects/:.shop:inner/versions/1/referencedby") == [3]
        assert await client.get("/subjects/inner/versions/1/referencedby") == [4]
        far = (await client.get("/subjects/:.shop:far/versions/1"))["references"]
        assert await client.register(":.shop:again", U, references=far) == 4
        await client.ask("DELETE", "/subjects/:.shop:far/versions/1")
    async with registry(tmp_path) as client:
        assert await client.get("/subjects/inner/versions/1/referencedby") == [4]


async def test_no_success_before_the_record_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with registry(tmp_path) as client:
        await client.register("s", A)
        committed = Deferred[None]()
        real = Partition.when_committed

        def held(self: Partition, offset: int) -> Deferred[None]:
            return committed if self.topic_partition.topic == TOPIC else real(self, offset)

        monkeypatch.setattr(Partition, "when_committed", held)
        asked = asyncio.create_task(client.register("s", AB))
        while client.partition.log_end_offset < 2:
            await client.get("/schemas/types")  # which asks nothing of the log
        await client.get("/subjects")
        assert not asked.done()
        committed.complete(None)
        assert await asked == 2


async def test_a_commit_that_does_not_come_is_a_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with registry(tmp_path) as client:
        monkeypatch.setattr(topic_module, "TIMEOUT_S", 0.01)
        monkeypatch.setattr(Partition, "when_committed", lambda *_: Deferred[None]())
        assert await client.register("s", A) == 50002


async def test_registrations_at_the_same_time_get_ids_of_their_own(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        texts = [A.replace('"A"', f'"A{number}"') for number in range(20)]
        found = await asyncio.gather(*(client.register(f"s{n % 3}-{n}", text) for n, text in enumerate(texts)))
        assert sorted(found) == list(range(1, 21))
        again = await asyncio.gather(*(client.register("same", A) for _ in range(5)))
        assert len(set(again)) == 1


async def test_a_body_is_bounded(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        body = io.BytesIO(json.dumps({"schema": "x" * (1 << 20)}).encode())
        async with client.session.post("http://registry/subjects/s/versions", data=body) as response:
            assert response.status == 413


async def test_a_foreign_host_is_refused(tmp_path: Path) -> None:
    async with registry(tmp_path) as client:
        headers = {"Host": "evil.example"}
        async with client.session.get("http://registry/subjects", headers=headers) as response:
            assert response.status == 421


def test_functions_for_threads_take_only_values() -> None:
    assert decode_chunk(b"", 5) == ([], 5)
    assert compatibility_faults("FULL", None, []) == []  # type: ignore[arg-type]
    assert find_equal(None, []) is None  # type: ignore[arg-type]


async def test_only_the_leader_of_the_topic_serves(tmp_path: Path) -> None:
    """Clients with several URLs try the next one after a 500."""
    async with registry(tmp_path) as client:
        await client.register("s", A)
        metadata = client.parts.broker.metadata
        image = metadata.topics[TOPIC]
        for leader, named in ((9, "broker 9"), (-1, "none")):
            metadata.put(image._replace(partitions=(image.partitions[0]._replace(leader=leader),)))
            for method, path, body in (("GET", "/subjects", None), ("POST", "/subjects/s/versions", {"schema": AB})):
                status, found = await client.ask(method, path, body)
                assert (status, found["error_code"]) == (500, 50004)
                assert named in found["message"]
        metadata.put(image)
        assert await client.get("/subjects/s/versions") == [1]


@pytest.mark.parametrize(
    ("granted", "statuses"), [([], (403, 403, 403)), (["READ"], (200, 404, 403)), (["READ", "WRITE"], (200, 404, 200))]
)
async def test_acls_of_the_topic_decide_who_may_use_the_registry(
    tmp_path: Path, granted: list[str], statuses: tuple[int, ...]
) -> None:
    """Reading, and looking up by POST, need READ; changes need WRITE."""
    async with registry(tmp_path, authorizer_class_name=STANDARD_AUTHORIZER) as client:
        client.allow(*(AclOperation[name] for name in granted))
        questions = (
            ("GET", "/subjects", None),
            ("POST", "/subjects/none", {"schema": A}),
            ("PUT", "/config", {"compatibility": "FULL"}),
        )
        found = []
        for method, path, body in questions:
            headers = {"Content-Type": CONTENT_TYPE}
            data = json.dumps(body).encode()
            async with client.session.request(method, f"http://registry{path}", data=data, headers=headers) as response:
                found.append(response.status)
        assert tuple(found) == statuses


async def test_many_records_are_replayed_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed megabyte of another program's records has a hundred thousand of them."""
    replayed: list[int] = []
    turn = 0
    replay = SchemasTopic._replay

    def replay_and_count(topic: SchemasTopic, record: StoredRecord) -> None:
        replayed.append(turn)
        replay(topic, record)

    monkeypatch.setattr(SchemasTopic, "_replay", replay_and_count)
    async with registry(tmp_path) as client:
        modes = (
            (f'{{"keytype":"MODE","subject":"s{n}","magic":0}}'.encode(), b'{"mode":"IMPORT"}') for n in range(3_000)
        )
        client.append(*modes)
        reading = asyncio.create_task(client.get("/mode/s2999"))
        while not reading.done():
            turn += 1
            await asyncio.sleep(0)
        assert await reading == {"mode": "IMPORT"}
    assert len(replayed) == 3_000
    assert max(Counter(replayed).values()) <= REPLAYED_PER_TURN
