from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import AdminBroker, context_of
from tests.unit.broker.controller.test_topic_changes import Steps
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.drive import drive
from tests.unit.broker.stepping import response_of
from tidelog.broker.config.changes import Change, Operation
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.handlers import alter_configs, describe_configs, incremental_alter_configs
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.nodes import Node
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import (
    InvalidConfigError,
    InvalidRequestError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages import alter_configs as alter
from tidelog.protocol.messages import incremental_alter_configs as incremental
from tidelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    admin = AdminBroker(tmp_path)
    create_topic(admin, "orders", configs={"retention.ms": "5"})
    return admin


@pytest.mark.parametrize("version", range(5))
def test_configs_are_described(admin: AdminBroker, version: int) -> None:
    resources = [
        DescribeConfigsResource(
            resource_type=TOPIC, resource_name="orders", configuration_keys=["retention.ms", "segment.bytes"]
        ),
        DescribeConfigsResource(resource_type=TOPIC, resource_name="no", configuration_keys=None),
        DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=None),
    ]
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=version >= 1, include_documentation=version >= 3
    )
    topic, unknown, broker = drive(admin.broker, request, DescribeConfigsResponse, version).results
    own, default = sorted(topic.configs, key=lambda config: config.name)
    assert (own.name, own.value, default.name, default.value) == ("retention.ms", "5", "segment.bytes", "1073741824")
    assert (unknown.error_code, unknown.resource_name) == (UnknownTopicOrPartitionError.code, "no")
    assert len(broker.configs) > 100
    if version == 0:
        assert (own.is_default, default.is_default) == (False, True)
    else:
        assert (own.config_source, default.config_source) == (1, 5)
        assert [synonym.name for synonym in own.synonyms] == ["retention.ms", "log.retention.hours"]
    if version >= 3:
        assert own.config_type == 5
        assert own.documentation
    whole = response_of(describe_configs.error_response(request, UnknownServerError()))
    assert [result.error_code for result in whole.results] == [-1, -1, -1]


def test_an_empty_list_of_keys_asks_for_all_as_null_does(admin: AdminBroker) -> None:
    """Found by the oracle of authorization: Apache Kafka takes both for all keys."""
    described = []
    empty: list[str] = []
    for keys in (None, empty):
        resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="orders", configuration_keys=keys)
        (result,) = drive(admin.broker, DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse).results
        described.append([config.name for config in result.configs])
    assert described[0] == described[1] != []


def test_synonyms_and_documentation_only_when_asked_for(admin: AdminBroker) -> None:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="orders", configuration_keys=["retention.ms"])
    request = DescribeConfigsRequest(resources=[resource])
    (result,) = drive(admin.broker, request, DescribeConfigsResponse).results
    assert (result.configs[0].synonyms, result.configs[0].documentation) == ([], None)


@pytest.mark.parametrize("version", range(3))
def test_configs_are_replaced(admin: AdminBroker, version: int) -> None:
    resources = [
        alter.AlterConfigsResource(
            resource_type=TOPIC, resource_name="orders", configs=[alter.AlterableConfig(name=name, value=value)]
        )
        for name, value in (("flush.ms", "9"), ("flush.ms", "x"), ("flush.ms", None))
    ]
    resources[2].configs.append(alter.AlterableConfig(name="flush.ms", value=None))
    twice = [alter.AlterableConfig(name="flush.ms", value="1")] * 2
    resources.append(alter.AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=twice))
    codes = []
    for resource in resources:
        one = alter.AlterConfigsRequest(resources=[resource])
        codes.append(drive(admin.broker, one, alter.AlterConfigsResponse, version).responses[0].error_code)
    invalid, malformed = InvalidConfigError.code, InvalidRequestError.code
    assert codes == [0, invalid, malformed, malformed]
    assert admin.metadata.topics["orders"].configs == {"flush.ms": "9"}
    request = alter.AlterConfigsRequest(resources=resources)
    whole = alter_configs.error_response(request, UnknownServerError())
    assert {answer.error_code for answer in whole.responses} == {-1}


@pytest.mark.parametrize("version", range(2))
def test_single_configs_are_changed(admin: AdminBroker, version: int) -> None:
    def resource(name: str, operation: int, value: str | None) -> incremental.AlterConfigsResource:
        config = incremental.AlterableConfig(name=name, config_operation=operation, value=value)
        return incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=[config])

    resources = [
        resource("flush.ms", 0, "9"),
        resource("retention.ms", 1, None),
        resource("cleanup.policy", 2, "compact"),
        resource("cleanup.policy", 3, "delete"),
        resource("flush.ms", 7, "1"),
    ]
    codes = []
    for one in resources:
        asked = incremental.IncrementalAlterConfigsRequest(resources=[one])
        (answer,) = drive(admin.broker, asked, incremental.IncrementalAlterConfigsResponse, version).responses
        codes.append(answer.error_code)
    assert codes == [0, 0, 0, 0, InvalidRequestError.code]
    request = incremental.IncrementalAlterConfigsRequest(resources=resources)
    assert admin.metadata.topics["orders"].configs == {"flush.ms": "9", "cleanup.policy": "compact"}
    whole = incremental_alter_configs.error_response(request, UnknownServerError())
    assert {answer.error_code for answer in whole.responses} == {-1}


@pytest.mark.parametrize(
    ("kind", "name", "key", "item", "code"),
    [
        (TOPIC, "orders", "leader.replication.throttled.replicas", "1%04d:1", InvalidConfigError.code),
        (ResourceType.CLIENT_METRICS, "sub", "metrics", "org.apache.%d", InvalidRequestError.code),
    ],
)
def test_a_list_does_not_grow_beyond_what_a_record_holds(
    admin: AdminBroker, kind: ResourceType, name: str, key: str, item: str, code: int
) -> None:
    """Each request has a part of the list, and a value in the metadata log has 32,767 bytes at most, as in Kafka."""
    answers: list[incremental.AlterConfigsResourceResponse] = []
    for first in range(0, 5000, 1000):
        value = ",".join(item % number for number in range(first, first + 1000))
        config = incremental.AlterableConfig(name=key, config_operation=2, value=value)
        resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        asked = incremental.IncrementalAlterConfigsRequest(resources=[resource])
        answers += drive(admin.broker, asked, incremental.IncrementalAlterConfigsResponse, 1).responses
    codes = [answer.error_code for answer in answers]
    assert codes == sorted(codes, key=bool)
    assert set(codes) == {0, code}
    assert "exceeds the maximum value size of 32767 bytes" in str(answers[-1].error_message)


def test_changes_can_be_only_validated(admin: AdminBroker) -> None:
    config = incremental.AlterableConfig(name="flush.ms", config_operation=0, value="9")
    resource = incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=[config])
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    (answer,) = drive(admin.broker, request, incremental.IncrementalAlterConfigsResponse).responses
    assert answer.error_code == 0
    assert admin.metadata.topics["orders"].configs == {"retention.ms": "5"}


def set_by(api: str, value: str, *, validate_only: bool) -> Any:
    """Build a request that sets ``log.retention.ms``, and one key that every resource refuses."""
    named = (BROKER, "1", "log.retention.ms"), (TOPIC, "orders", "no.such.key")
    if api == "AlterConfigs":
        return alter.AlterConfigsRequest(
            resources=[
                alter.AlterConfigsResource(
                    resource_type=kind, resource_name=name, configs=[alter.AlterableConfig(name=key, value=value)]
                )
                for kind, name, key in named
            ],
            validate_only=validate_only,
        )
    return incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[incremental.AlterableConfig(name=key, config_operation=Operation.SET, value=value)],
            )
            for kind, name, key in named
        ],
        validate_only=validate_only,
    )


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        ("IncrementalAlterConfigs", incremental.IncrementalAlterConfigsResponse),
        ("AlterConfigs", alter.AlterConfigsResponse),
    ],
)
def test_a_change_is_a_line_of_the_audit_log_without_its_value(
    admin: AdminBroker, api: str, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tidelog.audit"):
        drive(admin.broker, set_by(api, "4711", validate_only=True), answer)
        assert not caplog.messages
        drive(admin.broker, set_by(api, "4711", validate_only=False), answer)
    (line,) = [json.loads(message) for message in caplog.messages]
    assert line | {"address": ""} == {
        "event": "config changed", "user": "User:ANONYMOUS", "address": "", "resource": "BROKER", "name": "1",
        "keys": ["log.retention.ms"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["tidelog.audit", "root"])
def test_a_change_that_silences_the_audit_log_is_its_last_line(
    admin: AdminBroker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a client that may change configs could hide what it does next."""
    config = incremental.AlterableConfig(name=name, config_operation=Operation.SET, value="FATAL")
    resource = incremental.AlterConfigsResource(resource_type=8, resource_name="1", configs=[config])
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource])
    audit, root = logging.getLogger("tidelog.audit"), logging.getLogger()
    levels = audit.level, root.level
    try:
        audit.setLevel(logging.NOTSET if name == "root" else logging.INFO)
        root.setLevel(logging.INFO)
        drive(admin.broker, request, incremental.IncrementalAlterConfigsResponse)
    finally:
        audit.setLevel(levels[0])
        root.setLevel(levels[1])
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == "tidelog.audit"]
    assert (line["event"], line["resource"], line["keys"]) == ("config changed", "BROKER_LOGGER", [name])


def test_config_resources_are_listed(admin: AdminBroker) -> None:
    admin.configs.alter(ResourceType.CLIENT_METRICS, "s", [Change("metrics", Operation.SET, "*")], False)

    def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=list(kinds))
        response = drive(admin.broker, request, ListConfigResourcesResponse, version)
        assert response.error_code == 0
        return [(entry.resource_type, entry.resource_name) for entry in response.config_resources]

    assert listed(0) == [(16, "s")]
    assert listed(1, 2, 2) == [(2, "orders")]
    assert listed(1) == [(2, "orders"), (4, "1"), (8, "1"), (16, "s")]
    request = ListConfigResourcesRequest(resource_types=[99])
    response = drive(admin.broker, request, ListConfigResourcesResponse, 1)
    assert response.error_code == UnsupportedVersionError.code


def test_all_registered_brokers_are_listed(admin: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Node(1, "here", 9092, None)
    monkeypatch.setattr(type(admin.broker.nodes), "alive_nodes", lambda *_: [here._replace(node_id=3), here])
    monkeypatch.setattr(type(admin.broker.nodes), "fenced_nodes", lambda *_: [here._replace(node_id=2, is_fenced=True)])
    response = drive(admin.broker, ListConfigResourcesRequest(resource_types=[4, 8]), ListConfigResourcesResponse, 1)
    listed = [(entry.resource_type, entry.resource_name) for entry in response.config_resources]
    assert listed == [(4, "1"), (4, "2"), (4, "3"), (8, "1"), (8, "2"), (8, "3")]


def test_a_resource_that_is_asked_for_again_is_described_once(admin: AdminBroker) -> None:
    resources = [DescribeConfigsResource(resource_type=4, resource_name=str(admin.broker.node_id))] * 500
    response = drive(admin.broker, DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    assert len(response.results) == 1


def test_an_answer_that_would_be_too_long_is_refused(admin: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        create_topic(admin, name, 1)
    resources = [
        DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
        for name in ("first", "second")
    ]
    request = DescribeConfigsRequest(resources=resources)
    whole = drive(admin.broker, request, DescribeConfigsResponse)
    one = sum(describe_configs.size_of(entry) for entry in whole.results[0].configs)
    monkeypatch.setattr(describe_configs, "MAX_ANSWER_BYTES", one * 3 // 2)
    response = drive(admin.broker, request, DescribeConfigsResponse)
    assert [result.error_code for result in response.results] == [InvalidRequestError.code] * 2
    request.resources.pop()
    assert drive(admin.broker, request, DescribeConfigsResponse).results == whole.results[:1]


@pytest.mark.parametrize("single", [True, False], ids=["IncrementalAlterConfigs", "AlterConfigs"])
@pytest.mark.parametrize(
    ("kind", "key", "at_once"),
    [(BROKER, "log.retention.ms", True), (GROUP, "consumer.session.timeout.ms", True), (TOPIC, "retention.ms", False)],
)
def test_only_a_topics_configs_wait_for_the_topic_of_that_name(
    admin: AdminBroker, kind: ResourceType, key: str, at_once: bool, single: bool
) -> None:
    """The topic "1" is being widened; a node and a group may have that name, too."""
    create_topic(admin, "1")
    steps = Steps()
    admin.set_listener(admin.listener, steps)
    admin.topics.changes.widen("1", 2)
    if single:
        config = incremental.AlterableConfig(name=key, config_operation=Operation.SET, value="50000")
        asked = incremental.AlterConfigsResource(resource_type=kind, resource_name="1", configs=[config])
        request = incremental.IncrementalAlterConfigsRequest(resources=[asked])
        handled: Iterator[Any] = incremental_alter_configs.handle(admin.broker, context_of(1), request)
    else:
        replaced = alter.AlterConfigsResource(
            resource_type=kind, resource_name="1", configs=[alter.AlterableConfig(name=key, value="50000")]
        )
        handled = alter_configs.handle(admin.broker, context_of(2), alter.AlterConfigsRequest(resources=[replaced]))
    while next(handled) is None:  # up to what it waits for: the sync
        pass
    (entry,) = admin.configs.describe(kind, "1", {key})
    assert (entry.value == "50000") is at_once
    steps.all()
    (entry,) = admin.configs.describe(kind, "1", {key})
    assert entry.value == "50000"


def test_a_resource_that_is_named_twice_is_changed_by_neither(admin: AdminBroker) -> None:
    def resource(module: Any, name: str, text: str) -> Any:
        config = module.AlterableConfig(name="retention.ms", value=text)
        return module.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])

    create_topic(admin, "once", configs={})
    apis: list[tuple[Any, Any, Any]] = [
        (alter, alter.AlterConfigsRequest, alter.AlterConfigsResponse),
        (incremental, incremental.IncrementalAlterConfigsRequest, incremental.IncrementalAlterConfigsResponse),
    ]
    for module, request, response in apis:
        asked = [resource(module, "orders", "7"), resource(module, "once", "8"), resource(module, "orders", "9")]
        answers = drive(admin.broker, request(resources=asked), response).responses
        assert [one.error_code for one in answers] == [InvalidRequestError.code, 0, InvalidRequestError.code]
        assert answers[0].error_message == "Each resource must appear at most once."
    configs = {name: admin.metadata.topics[name].configs.get("retention.ms") for name in ("orders", "once")}
    assert configs == {"orders": "5", "once": "8"}


# Keystores and truststores

STORE = "listener.name.ssl.ssl.keystore.location"


class Stores:
    """Listeners whose stores may lie in any file but ``/bad.pem``."""

    def __init__(self) -> None:
        self.checked: list[str | None] = []
        self.reloads = 0

    def check(self, texts: Mapping[str, str], _names: object) -> Callable[[], None]:
        self.checked.append(texts.get(STORE))

        def read() -> None:
            if texts.get(STORE) == "/bad.pem":
                raise ConfigError("/bad.pem cannot be read")

        return read

    def take_over(self, texts: Mapping[str, str]) -> None:
        """Do nothing."""

    def reload(self) -> None:
        self.reloads += 1


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    yield data
    data.close()


def set_store(data: DataBroker, text: str | None, *, is_incremental: bool, validate_only: bool = False) -> int:
    """Set or remove the location of a keystore; return the error code."""
    request: Any
    handled: Any
    if is_incremental:
        operation = Operation.DELETE if text is None else Operation.SET
        config = incremental.AlterableConfig(name=STORE, config_operation=operation, value=text)
        resource = incremental.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[config])
        request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        handled = incremental_alter_configs.handle(data.broker, data.context(1), request)
    else:
        configs = [] if text is None else [alter.AlterableConfig(name=STORE, value=text)]
        replaced = alter.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
        request = alter.AlterConfigsRequest(resources=[replaced], validate_only=validate_only)
        handled = alter_configs.handle(data.broker, data.context(1), request)
    answer = response_of(handled)
    while isinstance(answer, Deferred) and not answer.done:
        data.run_turn()
    data.run_turn()
    (result,) = answer.result().responses if isinstance(answer, Deferred) else answer.responses
    return int(result.error_code)


@pytest.mark.parametrize("is_incremental", [True, False])
def test_a_store_that_cannot_be_used_is_refused(data: DataBroker, is_incremental: bool) -> None:
    stores = Stores()
    data.broker.configs.stores.watch(stores)
    assert set_store(data, "/bad.pem", is_incremental=is_incremental) == InvalidRequestError.code
    assert STORE not in data.broker.config.listener_texts()
    assert set_store(data, "/good.pem", is_incremental=is_incremental) == 0
    assert data.broker.config.listener_texts()[STORE] == "/good.pem"
    assert set_store(data, None, is_incremental=is_incremental) == 0
    assert stores.checked == ["/bad.pem", "/good.pem", None], "the store of the configuration file is checked, too"


@pytest.mark.parametrize("is_incremental", [True, False])
def test_stores_are_read_again_after_a_change_not_after_a_validation(data: DataBroker, is_incremental: bool) -> None:
    stores = Stores()
    data.broker.configs.stores.watch(stores)
    assert set_store(data, "/good.pem", is_incremental=is_incremental, validate_only=True) == 0
    assert stores.reloads == 0
    for count in (1, 2):
        assert set_store(data, "/good.pem", is_incremental=is_incremental) == 0
        assert stores.reloads == count
