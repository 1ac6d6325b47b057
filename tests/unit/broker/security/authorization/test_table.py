"""The table of authorization: a row for every API, and no success without a grant, through the dispatcher."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.access_questions import NEEDS_NOTHING, QUESTIONS, TOKENS, Names, batch
from tests.support.questions import build
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.config.changes import Change, Operation
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.config.resource_type import ResourceType as ConfigResource
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.metadata.image_records import VersionedRecord, acl_record
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Pending
from tidelog.broker.security.authorization.decision import decide
from tidelog.broker.security.authorization.table import ROWS, page
from tidelog.broker.security.principal import Principal
from tidelog.protocol.acl import CLUSTER_NAME, AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.api_keys import ApiKey, response_header_version
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.metadata_records.records import RemoveAccessControlEntryRecord
from tidelog.protocol.record.record_batch import has_transactional_batch
from tidelog.protocol.schema.fields import Struct
from tidelog.protocol.transferable import TransferableRecords

TEXTS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
FILTERED = {"list_groups", "list_transactions", "describe_cluster", "describe_log_dirs", "fetch"}
"""APIs whose answer without a grant is empty, and no error; a fetch session has an error in its partitions alone."""


class World:
    """A broker with an authorizer, a topic, a dispatcher."""

    def __init__(self, directory: Path) -> None:
        self.data = DataBroker(directory, TEXTS)
        self.topic_id = create_topic(self.data, "orders", 1).topic_id
        coordinators_of(self.data.broker).start()
        self.dispatcher = Dispatcher(self.data.broker)
        self.contexts: dict[str, RequestContext] = {}
        self._acls = 0

    def allow(self, operation: AclOperation, resource_type: ResourceType, name: str, user: str = "x") -> bytes:
        rule = AccessRule(
            resource_type, name, PatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )
        self._acls += 1
        acl_id = self._acls.to_bytes(16, "big")
        self.data.broker.controller.commit([VersionedRecord(acl_record(acl_id, rule))])
        return acl_id

    def set_level(self, level: str) -> None:
        """Set the level of the authorizer's logger, as IncrementalAlterConfigs does."""
        change = Change("kafka.authorizer.logger", Operation.SET, level)
        self.data.broker.configs.alter(ConfigResource.BROKER_LOGGER, "1", [change], validate_only=False)

    def ask(self, api: str, version: int, user: str, fields: Any) -> Any:
        """Return the response to a request of a user, None where the connection is closed."""
        answers: list[Any] = []
        self.begin(api, version, user, fields, answers.append, hurries=True)
        while not answers:
            if not self.turn():
                self.data.loop.advance(1000)
        return answers[0]

    def begin(
        self,
        api: str,
        version: int,
        user: str,
        fields: Any,
        on_response: Callable[[Any], None],
        *,
        hurries: bool = False,
    ) -> None:
        """Send a request; ``told`` is called with its response, or with None if the connection is closed."""
        module = importlib.import_module(f"tidelog.protocol.messages.{api}")
        name = "".join(word.capitalize() for word in api.split("_"))
        request = build(getattr(module, f"{name}Request"), fields, version)
        key = ApiKey[api.upper()]
        head = RequestHeader(api_key=key, api_version=version, correlation_id=1, client_id="test")
        frame = encode_request_header(head) + request.encode(version)
        position = 9 if response_header_version(key, version) >= 1 else 8
        response_class = getattr(module, f"{name}Response")

        def tell(parts: Any) -> None:
            body = b"".join(map(bytes_of, parts)) if isinstance(parts, list) else parts
            on_response(None if body is None else response_class.decode(memoryview(body)[position:], version))

        context = self.contexts.setdefault(user, RequestContext())
        if context.principal != Principal("User", user):  # else its kept verdicts would not be its own
            context.principal = Principal("User", user)
        answer = self.dispatcher.dispatch(context, memoryview(bytearray(frame)))
        if isinstance(answer, Pending):
            answer.on_answer(tell)
            if hurries:
                answer.hurry()
        else:
            tell(answer)

    def turn(self) -> bool:
        """Run the callbacks of the next turn of the loop; return whether there were any."""
        soon, self.data.loop.soon = self.data.loop.soon, []
        for callback in soon:
            callback()
        return bool(soon)


def bytes_of(part: Any) -> bytes:
    """Return the bytes of a part of an answer, and let the slice's file go."""
    if not isinstance(part, TransferableRecords):
        return bytes(part)
    found = os.pread(part.file.fileno(), part.size, part.position)
    part.release()
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.data.close()


def codes_of(struct: Struct) -> Iterator[int]:
    """Yield every error code of a response, outer ones first."""
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        if field.name.endswith("error_code"):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Struct):
                    yield from codes_of(item)


def has_success(struct: Struct) -> bool:
    """Return whether any part of a response is no error."""
    codes = [getattr(struct, field.name) for field in struct.FIELDS if field.name.endswith("error_code")]
    if any(codes):
        return False
    lists = [getattr(struct, field.name) for field in struct.FIELDS]
    parts = [item for value in lists if isinstance(value, list) for item in value if isinstance(item, Struct)]
    parts = [part for part in parts if any(codes_of_kind(part))]
    return any(map(has_success, parts)) if parts else bool(codes)


def codes_of_kind(struct: Struct) -> Iterator[bool]:
    """Yield True for each error code that this kind of struct has, however deep."""
    yield from (True for field in struct.FIELDS if field.name.endswith("error_code"))
    for field in struct.FIELDS:
        item = field.item
        if isinstance(item, type) and issubclass(item, Struct):
            yield from codes_of_kind(item())


def versions_of(api: str, since: int) -> range:
    entry = REGISTRY[ApiKey[api.upper()]]
    return range(max(entry.min_version, since), entry.max_version + 1)


def test_every_api_of_the_registry_has_a_row() -> None:
    assert set(ROWS) == {ApiKey(key) for key in REGISTRY}


def test_the_page_shows_the_table() -> None:
    shown = Path(__file__).parents[5] / "docs" / "internals" / "authorization.md"
    assert shown.read_text() == page(), "make docs"


def test_every_api_is_tried() -> None:
    tried = {asking.api for asking in QUESTIONS} | NEEDS_NOTHING | TOKENS
    assert {ApiKey[api.upper()] for api in tried} == set(ROWS)


@pytest.mark.parametrize("there", [True, False], ids=["existing names", "missing names"])
def test_no_api_succeeds_without_a_grant(world: World, there: bool) -> None:
    topic_id = world.topic_id if there else bytes(range(16))
    names = Names("orders" if there else "missing", topic_id, "group", "transaction")
    for api, question, since, _ in QUESTIONS:
        refused = {int(code) for code in re.findall(r"\d+", ROWS[ApiKey[api.upper()]].refused)}
        for version in versions_of(api, since):
            response = world.ask(api, version, "nobody", question(names))
            assert response is not None, (api, version)
            codes = set(codes_of(response)) - {0}
            unknown = {100} if not there else set()  # an id that no topic has tells nothing
            assert codes <= refused | unknown, (api, version, codes)
            if api in FILTERED or question(names).get("topics", ...) in (None, []):
                assert not getattr(response, "groups", []) or codes
            else:
                assert not has_success(response), (api, version, response)


def test_an_answer_about_a_missing_topic_is_that_about_a_hidden_one(world: World) -> None:
    world.allow(AclOperation.READ, ResourceType.GROUP, "group")
    world.allow(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "transaction")
    for api, question, since, _ in QUESTIONS:
        for version in versions_of(api, since):
            answers = []
            for name in ("orders", "missed"):
                response = world.ask(api, version, "x", question(Names(name, bytes(16), "group", "transaction")))
                assert response is not None
                assert -1 not in set(codes_of(response)), (api, version)
                answers.append(str(response.encode(version)).replace(name, "NAME"))
            assert answers[0] == answers[1], (api, version)


def test_a_super_user_is_never_refused(world: World) -> None:
    names = Names("orders", world.topic_id, "group", "transaction")
    for api, question, since, _ in QUESTIONS:
        for version in versions_of(api, since):
            response = world.ask(api, version, "admin", question(names))
            assert response is not None
            assert not {-1, 29, 30, 31, 53} & set(codes_of(response)), (api, version)


def test_a_change_of_acls_holds_with_the_next_request(world: World) -> None:
    names = Names("orders", world.topic_id, "group", "transaction")
    (fetch,) = (asking.question(names) for asking in QUESTIONS if asking.api == "fetch")
    before = world.ask("fetch", 12, "x", fetch).responses[0].partitions[0]
    acl_id = world.allow(AclOperation.READ, ResourceType.TOPIC, "orders")
    during = world.ask("fetch", 12, "x", fetch).responses[0].partitions[0]

    world.data.broker.controller.commit([VersionedRecord(RemoveAccessControlEntryRecord(id=acl_id))])
    after = world.ask("fetch", 12, "x", fetch).responses[0].partitions[0]
    assert [one.error_code for one in (before, during, after)] == [29, 0, 29]
    assert before.high_watermark == after.high_watermark == -1


def test_authorized_operations_are_a_bit_field(world: World) -> None:
    world.allow(AclOperation.READ, ResourceType.TOPIC, "orders")
    world.allow(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    asked = {"topics": [{"name": "orders"}], "include_topic_authorized_operations": True,
             "include_cluster_authorized_operations": True}  # fmt: skip
    response = world.ask("metadata", 10, "x", asked)
    assert response.topics[0].topic_authorized_operations == 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
    assert response.cluster_authorized_operations == 0, "it may not DESCRIBE the cluster"
    world.allow(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    bits = world.ask("metadata", 10, "x", asked).cluster_authorized_operations
    expected = (AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS)
    assert bits == sum(1 << operation for operation in expected)


def test_a_pattern_finds_only_topics_that_the_subscriber_may_know(world: World) -> None:
    create_topic(world.data, "orders-hidden", 1)
    world.allow(AclOperation.READ, ResourceType.GROUP, "group")
    world.allow(AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")
    joining = {
        "group_id": "group", "member_id": "AAAAAAAAAAAAAAAAAAAAAQ", "member_epoch": 0, "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [], "subscribed_topic_regex": "orders.*", "topic_partitions": [],
    }  # fmt: skip
    response = world.ask("consumer_group_heartbeat", 1, "x", joining)
    assert response.error_code == 0
    assert [topic.topic_id for topic in response.assignment.topic_partitions] == [world.topic_id]


def test_internal_topics_of_a_streams_group_need_the_permission_to_create_them(world: World) -> None:
    subtopology = {
        "subtopology_id": "0", "source_topics": ["orders"], "source_topic_regex": [], "repartition_sink_topics": [],
        "state_changelog_topics": [{"name": "app-log", "partitions": 0, "replication_factor": 1, "topic_configs": []}],
        "repartition_source_topics": [], "copartition_groups": [],
    }  # fmt: skip
    joining = {
        "group_id": "app", "member_id": "AAAAAAAAAAAAAAAAAAAAAg", "member_epoch": 0, "rebalance_timeout_ms": 60_000,
        "topology": {"epoch": 0, "subtopologies": [subtopology]}, "active_tasks": [], "standby_tasks": [],
        "warmup_tasks": [], "process_id": "p", "client_tags": [],
    }  # fmt: skip
    world.allow(AclOperation.READ, ResourceType.GROUP, "app")
    for topic in ("orders", "app-log"):
        world.allow(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    response = world.ask("streams_group_heartbeat", 0, "x", joining)
    assert "Unauthorized to CREATE on topics app-log." in " ".join(status.status_detail for status in response.status)
    assert world.data.broker.metadata.find("app-log") is None
    world.allow(AclOperation.CREATE, ResourceType.TOPIC, "app-log")
    world.ask("streams_group_heartbeat", 0, "x", joining)
    while world.turn():
        pass
    assert world.data.broker.metadata.find("app-log") is not None


@pytest.mark.parametrize("ends", ["by an append", "by the clock"])
def test_a_fetch_that_waits_is_refused_when_it_ends_after_its_acl(world: World, ends: str) -> None:
    acl_id = world.allow(AclOperation.READ, ResourceType.TOPIC, "orders")
    names = Names("orders", world.topic_id, "group", "transaction")
    (asked,) = (asking.question(names) for asking in QUESTIONS if asking.api == "fetch")
    answers: list[Any] = []
    world.begin("fetch", 12, "x", {**asked, "max_wait_ms": 5_000, "min_bytes": 1}, answers.append)
    assert not answers
    world.data.broker.controller.commit([VersionedRecord(RemoveAccessControlEntryRecord(id=acl_id))])
    if ends == "by an append":
        world.data.append("orders", b"secret")
        while world.turn():
            pass
    else:
        world.data.loop.advance(6_000)
    (response,) = answers
    (partition,) = response.responses[0].partitions
    assert (partition.error_code, partition.high_watermark) == (29, -1)
    assert not partition.records


def test_a_virtual_topic_needs_the_permissions_of_its_topic(world: World) -> None:
    """A malformed virtual topic of a hidden topic gets the same refusal as others, not an error about its form."""
    names = ("orders?key=1", "orders...key.1", "orders?nonsense")
    asked = [{"topics": [{"name": name}], "allow_auto_topic_creation": True} for name in names]
    refused = [world.ask("metadata", 9, "x", one).topics[0].error_code for one in asked]
    assert refused == [29, 29, 29]
    world.allow(AclOperation.READ, ResourceType.TOPIC, "orders")
    assert [world.ask("metadata", 9, "x", one).topics[0].error_code for one in asked[:2]] == [0, 0]
    fetch = {"topics": [{"topic": "orders?key=1", "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]}
    asked_for = {"session_epoch": -1, "max_bytes": 100, **fetch}
    answers = [world.ask("fetch", 11, user, asked_for) for user in ("y", "x")]
    codes = [answer.responses[0].partitions[0].error_code for answer in answers]
    assert codes[0] == 29
    assert codes[1] != 29


def write_to_orders(records: list[bytes], transactional_id: str | None = None) -> dict[str, Any]:
    """Build a produce request with these records, each for a partition of its own."""
    data = [{"index": index, "records": one} for index, one in enumerate(records)]
    topics = [{"name": "orders", "partition_data": data}]
    return {"transactional_id": transactional_id, "acks": -1, "topic_data": topics}


@pytest.mark.parametrize("transactional_id", [None, "transaction"])
@pytest.mark.parametrize("count", [1, 2, 200])
def test_a_transactional_batch_needs_permission_whatever_its_request_says(
    world: World, transactional_id: str | None, count: int
) -> None:
    """CVE-2018-17196: what a batch's header says of a transaction decides, not the request."""
    world.allow(AclOperation.WRITE, ResourceType.TOPIC, "orders")
    records = [batch()] * (count - 1) + [batch(transactional=True)]
    response = world.ask("produce", 9, "x", write_to_orders(records, transactional_id))
    codes = [one.error_code for one in response.responses[0].partition_responses]
    assert codes == [53] * count


@pytest.mark.parametrize("transactional_id", [None, "transaction"])
def test_a_transactional_second_batch_is_refused_with_the_first(world: World, transactional_id: str | None) -> None:
    """Only the first header is read, as in Kafka: a partition may have one batch only."""
    world.allow(AclOperation.WRITE, ResourceType.TOPIC, "orders")
    records = batch() + batch(transactional=True)
    response = world.ask("produce", 9, "x", write_to_orders([records], transactional_id))
    (answer,) = response.responses[0].partition_responses
    assert (answer.error_code, answer.base_offset) == (87, -1)


@pytest.mark.parametrize("transactional_id", [None, "transaction"])
@pytest.mark.parametrize("by_topic", [False, True])
def test_no_turn_reads_the_headers_of_many_batches(
    world: World, transactional_id: str | None, monkeypatch: pytest.MonkeyPatch, *, by_topic: bool
) -> None:
    """A client without any permission may ask: 1,600 partitions with 1,000 empty batches took over a second."""
    read = 0

    def counted(records: Any, *arguments: Any) -> bool:
        nonlocal read
        read += 1
        return has_transactional_batch(records, *arguments)

    monkeypatch.setattr("tidelog.broker.security.authorization.record_guards.has_transactional_batch", counted)
    world.dispatcher.runner.clock = lambda: read * 0.025
    fields = write_to_orders([batch() * 20] * MANY, transactional_id)
    if by_topic:
        (topic,) = fields["topic_data"]
        fields["topic_data"] = [{**topic, "partition_data": [one]} for one in topic["partition_data"]]
    answers: list[Any] = []
    world.begin("produce", 9, "x", fields, answers.append, hurries=True)
    turns = [read]
    while not answers:
        before = read
        if not world.turn():
            world.data.loop.advance(1000)
        turns.append(read - before)
    assert sum(turns) == MANY
    assert max(turns) <= 200
    answered = [one.error_code for topic in answers[0].responses for one in topic.partition_responses]
    assert answered == [29] * MANY


def plain_produce(world: World, *, by_id: bool) -> tuple[int, dict[str, Any]]:
    topic = {"topic_id": world.topic_id} if by_id else {"name": "orders"}
    data = [{**topic, "partition_data": [{"index": 0, "records": batch()}]}]
    return 13 if by_id else 9, {"acks": -1, "topic_data": data}


FREQUENT = ["produce", "produce by id", "fetch", "fetch by id", "metadata"]


def frequent_request(world: World, api: str) -> tuple[str, int, dict[str, Any]]:
    """Build a request that has a shortcut: its API, version and fields."""
    names = Names("orders", world.topic_id, "group", "transaction")
    name, by_id = api.split(" ")[0], api.endswith("by id")
    if name == "produce":
        return (name, *plain_produce(world, by_id=by_id))
    asked = next(one.question(names) for one in QUESTIONS if one.api == name)
    fields = {**asked, **({"topics": [{"name": "orders"}]} if name == "metadata" else {})}
    return name, 13 if by_id else 12, {key: value for key, value in fields.items() if not key.startswith("include_")}


@pytest.mark.parametrize("api", FREQUENT)
def test_a_repeated_request_is_refused_once_its_acl_is_deleted(
    world: World, api: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The shortcuts of frequent requests know no more than the ACLs say, and each denial is noted once."""
    name, version, fields = frequent_request(world, api)
    authorizer = world.data.broker.authorizer
    assert authorizer is not None
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    seen, denials = [], []
    for _ in range(3):
        acl_id = world.allow(AclOperation.ALL, ResourceType.TOPIC, "orders")
        seen += [set(codes_of(world.ask(name, version, "x", fields))) for _ in range(3)]
        world.data.broker.controller.commit([VersionedRecord(RemoveAccessControlEntryRecord(id=acl_id))])
        before = authorizer.denied_total, len(caplog.records)
        seen.append(set(codes_of(world.ask(name, version, "x", fields))) - {0})
        denials.append((authorizer.denied_total - before[0], len(caplog.records) - before[1]))
    assert seen == [{0}, {0}, {0}, {29}] * 3
    assert denials == [(1, 1)] * 3


def test_cached_decisions_of_a_client_are_limited_and_still_logged(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.security.authorization.authorizer.MAX_KEPT", 3)
    world.allow(AclOperation.ALL, ResourceType.TOPIC, "*")
    authorizer, context = world.data.broker.authorizer, RequestContext()
    context.principal = Principal("User", "x")
    assert authorizer is not None
    for number in range(20):
        assert authorizer.learn(context, AclOperation.WRITE, f"t{number}", f"t{number}")
        assert context.grants is not None
        assert 1 <= len(context.grants.writable) <= 3
    version, fields = plain_produce(world, by_id=False)
    world.ask("produce", version, "x", fields)
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        world.set_level("DEBUG")
        for _ in range(2):
            world.ask("produce", version, "x", fields)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2


MANY = 2_000
BATCH = batch()


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        (
            "produce",
            9,
            {"acks": 1, "topic_data": [
                {"name": f"t{n}", "partition_data": [{"index": 0, "records": BATCH}]} for n in range(MANY)]},
        ),
        ("metadata", 9, {"topics": [{"name": f"t{n}"} for n in range(MANY)], "allow_auto_topic_creation": False}),
        ("list_offsets", 7, {"replica_id": -1, "topics": [{"name": f"t{n}", "partitions": []} for n in range(MANY)]}),
        (
            "consumer_group_heartbeat",
            1,
            {"group_id": "group", "member_id": "m", "subscribed_topic_names": [f"t{n}" for n in range(MANY)]},
        ),
        (
            "add_partitions_to_txn",
            3,
            {"v3_and_below_transactional_id": "transaction", "v3_and_below_producer_id": 1,
             "v3_and_below_producer_epoch": 0,
             "v3_and_below_topics": [{"name": f"t{n}", "partitions": [0]} for n in range(MANY)]},
        ),
        (
            "describe_share_group_offsets",
            1,
            {"groups": [
                {"group_id": "group", "topics": [{"topic_name": f"t{n}", "partitions": [0]} for n in range(MANY)]}]},
        ),
    ],
)  # fmt: skip
def test_no_turn_asks_about_many_names(
    world: World, api: str, version: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict that is not kept may take 25 us: 2 ms of a turn are 80 of them."""
    world.allow(AclOperation.ALL, ResourceType.TOPIC, "*")
    world.allow(AclOperation.ALL, ResourceType.GROUP, "*")
    world.allow(AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, "*")
    authorizer = world.data.broker.authorizer
    assert authorizer is not None
    asked = 0

    def clock() -> float:
        """Return milliseconds, of which each question takes 25 thousandths."""
        return asked * 0.025

    def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return decide(*arguments)

    monkeypatch.setattr("tidelog.broker.security.authorization.authorizer.decide", counted)
    world.dispatcher.runner.clock = clock
    answers: list[Any] = []
    turns = []
    world.begin(api, version, "x", fields, answers.append, hurries=True)
    turns.append(asked)
    while not answers:
        before = asked
        if not world.turn():
            world.data.loop.advance(1000)
        turns.append(asked - before)
    assert sum(turns) >= MANY
    assert max(turns) <= 200


def test_a_group_that_is_named_twice_moves_no_refusal_to_another_group(world: World) -> None:
    """Handlers answer it once, so the refused topics stood beside the answers of the groups before them."""
    world.allow(AclOperation.DESCRIBE, ResourceType.GROUP, "*")
    world.allow(AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")
    wholes = [{"group_id": "a", "topics": None}] * 2
    named = [
        {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        for group, topic in (("b", "secret"), ("c", "orders"))
    ]
    answer = world.ask("offset_fetch", 8, "x", {"groups": [*wholes, *named]})
    found = {
        group.group_id: [(topic.name, one.error_code) for topic in group.topics for one in topic.partitions]
        for group in answer.groups
    }
    assert found == {"a": [], "b": [("secret", 29)], "c": [("orders", 0)]}


def test_a_refused_creation_has_kafkas_text(world: World) -> None:
    answer = world.ask("create_topics", 7, "x", {"topics": [{"name": "new", "num_partitions": 1}], "timeout_ms": 1})
    assert [(one.error_code, one.error_message) for one in answer.topics] == [(29, "Authorization failed.")]
