from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import AdminBroker
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.changes import Change, Operation, operation_of
from tidelog.broker.config.description import ConfigEntry, ConfigSource, ConfigSynonym, unit_synonyms
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.controller.features import level_record
from tidelog.broker.coordinator.group.assignment_interval import assignment_interval_ms
from tidelog.broker.metadata.image_records import config_records
from tidelog.log.config import TOPIC_CONFIG_DEF
from tidelog.protocol.errors import (
    InvalidConfigError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    KafkaError,
    UnknownTopicOrPartitionError,
)

TOPIC, BROKER, LOGGER = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.BROKER_LOGGER
GROUP, CLIENT_METRICS = ResourceType.GROUP, ResourceType.CLIENT_METRICS


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path)


def change(name: str, value: str | None, operation: Operation = Operation.SET) -> Change:
    return Change(name, operation, value)


def described_entry(admin: AdminBroker, kind: ResourceType, name: str, key: str) -> ConfigEntry:
    (entry,) = admin.configs.describe(kind, name, {key})
    return entry


# Topics


def test_a_topic_is_described_with_all_keys(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders")
    entries = admin.configs.describe_topic(image)
    assert [entry.name for entry in entries] == list(TOPIC_CONFIG_DEF.keys)
    assert {entry.source for entry in entries} == {ConfigSource.DEFAULT}
    assert all(entry.documentation for entry in entries)


def test_a_value_tells_where_it_comes_from(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"log.retention.hours": "2"})
    create_topic(admin, "orders", configs={"retention.ms": "5"})
    admin.configs.alter(BROKER, "", [change("log.retention.ms", "7")], False)
    admin.configs.alter(BROKER, "1", [change("log.retention.ms", "6")], False)
    entry = described_entry(admin, TOPIC, "orders", "retention.ms")
    assert (entry.value, entry.source, entry.type, entry.read_only) == ("5", ConfigSource.DYNAMIC_TOPIC, 5, False)
    assert entry.synonyms == [
        ConfigSynonym("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC),
        ConfigSynonym("log.retention.ms", "6", ConfigSource.DYNAMIC_BROKER),
        ConfigSynonym("log.retention.ms", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ConfigSynonym("log.retention.hours", "2", ConfigSource.STATIC_BROKER),
        ConfigSynonym("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("texts", "value", "source"),
    [
        ({}, "604800000", ConfigSource.DEFAULT),
        ({"log.retention.hours": "2"}, "7200000", ConfigSource.STATIC_BROKER),
    ],
)
def test_an_inherited_value_is_converted(
    tmp_path: Path, texts: dict[str, str], value: str, source: ConfigSource
) -> None:
    admin = AdminBroker(tmp_path, texts)
    create_topic(admin, "orders")
    entry = described_entry(admin, TOPIC, "orders", "retention.ms")
    assert (entry.value, entry.source) == (value, source)


def test_an_unknown_topic_has_no_configs(admin: AdminBroker) -> None:
    for act in (
        lambda: admin.configs.describe(TOPIC, "orders"),
        lambda: admin.configs.alter(TOPIC, "orders", [], False),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            act()


def test_topic_configs_are_set_deleted_and_kept(admin: AdminBroker) -> None:
    create_topic(admin, "orders", configs={"retention.ms": "1", "segment.bytes": "100"})
    changes = [change("retention.ms", None, Operation.DELETE), change("flush.ms", "9")]
    admin.configs.alter(TOPIC, "orders", changes, False)
    expected = {"segment.bytes": "100", "flush.ms": "9"}
    assert admin.metadata.topics["orders"].configs == expected
    assert admin.listener.events[-1] == ("configs", "orders", expected)
    assert admin.reopen().metadata.topics["orders"].configs == expected


def test_lists_grow_and_shrink(admin: AdminBroker) -> None:
    create_topic(admin, "orders")
    admin.configs.alter(TOPIC, "orders", [change("cleanup.policy", "compact", Operation.APPEND)], False)
    assert admin.metadata.topics["orders"].configs == {"cleanup.policy": "delete,compact"}
    admin.configs.alter(TOPIC, "orders", [change("cleanup.policy", "compact", Operation.APPEND)], False)
    admin.configs.alter(TOPIC, "orders", [change("cleanup.policy", "delete", Operation.SUBTRACT)], False)
    assert admin.metadata.topics["orders"].configs == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ([change("no.such.key", "1")], InvalidConfigError, "no.such.key"),
        ([change("no.such.key", "1", Operation.APPEND)], InvalidConfigError, "no.such.key"),
        ([change("retention.ms", "soon")], InvalidConfigError, "retention.ms"),
        ([change("retention.ms", "1", Operation.APPEND)], InvalidConfigError, "not LIST"),
        ([change("retention.ms", None)], InvalidRequestError, "Null value"),
        ([change("flush.ms", "1"), change("flush.ms", "2")], InvalidRequestError, "duplicate"),
        ([change("cleanup.policy", "burn", Operation.APPEND)], InvalidConfigError, "cleanup.policy"),
    ],
)
def test_bad_changes_are_refused(admin: AdminBroker, changes: list[Change], error: type[KafkaError], text: str) -> None:
    create_topic(admin, "orders")
    with pytest.raises(error, match=text):
        admin.configs.alter(TOPIC, "orders", changes, False)
    assert admin.metadata.topics["orders"].configs == {}


def test_replacing_removes_configs_that_are_not_named(admin: AdminBroker) -> None:
    create_topic(admin, "orders", configs={"retention.ms": "1"})
    admin.configs.replace(TOPIC, "orders", {"flush.ms": "9"}, validate_only=True)
    assert admin.metadata.topics["orders"].configs == {"retention.ms": "1"}
    admin.configs.replace(TOPIC, "orders", {"flush.ms": "9"}, validate_only=False)
    assert admin.metadata.topics["orders"].configs == {"flush.ms": "9"}


def test_logs_get_the_values_in_force(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"log.segment.bytes": "500"})
    plain = create_topic(admin, "plain")
    own = create_topic(admin, "own", configs={"retention.ms": "1"})
    assert admin.topic_configs.log_config(plain).segment_bytes == 500
    assert admin.topic_configs.log_config(own).retention_ms == 1
    assert admin.topic_configs.log_config(own).segment_bytes == 500
    assert admin.topic_configs.log_config(plain) is admin.topic_configs.log_config(plain)
    admin.configs.alter(BROKER, "", [change("log.segment.bytes", "600")], False)
    assert admin.topic_configs.log_config(plain).segment_bytes == 600
    assert [event[:2] for event in admin.listener.events[-2:]] == [("configs", "plain"), ("configs", "own")]


# Brokers


def test_a_broker_is_described(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"max.connections": "10"})
    entry = described_entry(admin, BROKER, "1", "max.connections")
    assert (entry.value, entry.source, entry.read_only) == ("10", ConfigSource.STATIC_BROKER, False)
    assert described_entry(admin, BROKER, "1", "listeners").read_only
    assert described_entry(admin, BROKER, "1", "num.partitions").source is ConfigSource.DEFAULT
    assert described_entry(admin, BROKER, "1", "broker.rack").value is None


def test_a_brokers_time_has_its_coarser_units_as_synonyms(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"log.retention.hours": "2"})
    entry = described_entry(admin, BROKER, "1", "log.retention.ms")
    assert entry.value is None
    assert [(synonym.name, synonym.value) for synonym in entry.synonyms] == [
        ("log.retention.hours", "2"),
        ("log.retention.hours", "168"),
    ]
    assert unit_synonyms("log.retention.ms") == ["log.retention.minutes", "log.retention.hours"]


def test_dynamic_broker_configs_are_kept_over_a_restart(admin: AdminBroker) -> None:
    admin.configs.alter(BROKER, "", [change("max.connections", "10")], False)
    admin.configs.alter(BROKER, "1", [change("max.connections", "11")], False)
    assert admin.config.get_int("max.connections") == 11
    again = admin.reopen()
    assert again.config.get_int("max.connections") == 11
    assert described_entry(again, BROKER, "", "max.connections").value == "10"
    assert [entry.name for entry in again.configs.describe(BROKER, "")] == ["max.connections"]
    again.configs.alter(BROKER, "1", [change("max.connections", None, Operation.DELETE)], False)
    assert again.config.get_int("max.connections") == 10
    again.configs.alter(BROKER, "", [change("max.connections", None, Operation.DELETE)], False)
    assert again.reopen().config.get_int("max.connections") == 2**31 - 1


def test_broker_changes_can_be_only_validated(admin: AdminBroker) -> None:
    admin.configs.alter(BROKER, "1", [change("max.connections", "10")], True)
    assert admin.config.get_int("max.connections") == 2**31 - 1


@pytest.mark.parametrize(
    ("name", "changes", "error", "text"),
    [
        ("1", [change("listeners", "PLAINTEXT://:1")], InvalidRequestError, "listeners"),
        ("1", [change("no.such.key", "1")], InvalidConfigError, "no.such.key"),
        ("1", [change("max.connections", "-1")], InvalidConfigError, "max.connections"),
        ("", [change("log.roll.ms", "0")], InvalidConfigError, "log.roll.ms"),
        ("1", [change("log.retention.ms", "-2")], InvalidConfigError, "log.retention.ms"),
        ("2", [], InvalidRequestError, "expected 1"),
        ("x", [], InvalidRequestError, "expected 1"),
    ],
)
def test_bad_broker_changes_are_refused(
    admin: AdminBroker, name: str, changes: list[Change], error: type[KafkaError], text: str
) -> None:
    with pytest.raises(error, match=text):
        admin.configs.alter(BROKER, name, changes, False)
    assert admin.reopen().config.get_int("max.connections") == 2**31 - 1


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("name", ["", "1"])
@pytest.mark.parametrize("protocol", ["consumer", "share", "streams"])
def test_a_brokers_value_for_groups_stays_within_its_bounds(
    tmp_path: Path, protocol: str, name: str, validate_only: bool
) -> None:
    admin = AdminBroker(tmp_path, {f"group.{protocol}.min.assignment.interval.ms": "10"})
    key = f"group.{protocol}.assignment.interval.ms"
    for text, bound in (("15001", "max"), ("9", "min")):
        with pytest.raises(InvalidConfigError, match=rf"{key}; .*group\.{protocol}\.{bound}\."):
            admin.configs.alter(BROKER, name, [change(key, text)], validate_only)
        with pytest.raises(InvalidConfigError, match=key):
            admin.configs.replace(BROKER, name, {key: text}, validate_only)
    admin.configs.alter(BROKER, name, [change(key, "15000")], validate_only)
    assert admin.config.get_int(key) == (0 if validate_only else 15000)


def test_a_clusters_value_beyond_its_bound_is_refused_though_a_nodes_hides_it(admin: AdminBroker) -> None:
    key = "group.consumer.assignment.interval.ms"
    admin.configs.alter(BROKER, "1", [change(key, "7")], False)
    with pytest.raises(InvalidConfigError, match=key):
        admin.configs.alter(BROKER, "", [change(key, "15001")], False)


def test_a_stored_value_beyond_its_bound_lets_the_broker_start_and_change(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path)
    key = "group.share.assignment.interval.ms"
    admin.configs.alter(BROKER, "", [change(key, "900")], False)
    admin.texts["group.share.max.assignment.interval.ms"] = "500"
    again = admin.reopen()
    assert assignment_interval_ms(again.config, {}, "share") == 500
    again.configs.alter(BROKER, "", [change("max.connections", "10")], False)
    assert again.config.get_int("max.connections") == 10


def test_a_stored_value_that_is_not_accepted_is_left_out(admin: AdminBroker, caplog: pytest.LogCaptureFixture) -> None:
    admin.controller.commit(config_records((BROKER, ""), {}, {"log.roll.ms": "0", "max.connections": "10"}))
    again = admin.reopen()
    for config in (admin.config, again.config):
        assert (config.get("log.roll.ms"), config.get_int("max.connections")) == (None, 10)
    assert caplog.text.count("log.roll.ms") == 2
    again.configs.alter(BROKER, "1", [change("max.connections", "11")], False)
    assert again.config.get_int("max.connections") == 11
    again.configs.alter(BROKER, "", [change("log.roll.ms", None, Operation.DELETE)], False)
    assert again.config.get_int("max.connections") == 11


def test_another_broker_cannot_be_described(admin: AdminBroker) -> None:
    for kind in (BROKER, LOGGER):
        with pytest.raises(InvalidRequestError):
            admin.configs.describe(kind, "9")


# Loggers


def test_log_levels_are_described_and_set(admin: AdminBroker, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.admin.levels")
    caplog.set_level(logging.WARNING, logger.name)
    entry = described_entry(admin, LOGGER, "1", "tests.admin.levels")
    assert (entry.value, entry.source) == ("WARN", ConfigSource.DYNAMIC_BROKER_LOGGER)
    admin.configs.alter(LOGGER, "1", [change("tests.admin.levels", "DEBUG")], True)
    assert logger.level == logging.WARNING
    admin.configs.alter(LOGGER, "1", [change("tests.admin.levels", "debug")], False)
    assert logger.level == logging.DEBUG
    assert "root" in {entry.name for entry in admin.configs.describe(LOGGER, "1")}


def test_log_levels_cannot_be_replaced_as_a_whole(admin: AdminBroker, caplog: pytest.LogCaptureFixture) -> None:
    """AlterConfigs would have to remove the levels that it does not name. Kafka refuses it, too."""
    logger = logging.getLogger("tests.admin.levels")
    caplog.set_level(logging.WARNING, logger.name)
    with pytest.raises(InvalidRequestError, match="Unsupported resource type: 8"):
        admin.configs.replace(LOGGER, "1", {logger.name: "DEBUG"}, False)
    assert logger.level == logging.WARNING


@pytest.mark.parametrize("changes", [[change("no.such.logger", "INFO")], [change("root", "LOUD")]])
def test_bad_levels_are_refused(admin: AdminBroker, changes: list[Change]) -> None:
    with pytest.raises(InvalidConfigError):
        admin.configs.alter(LOGGER, "1", changes, False)


# Groups and client metrics


def test_group_configs_default_to_the_brokers(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"group.consumer.session.timeout.ms": "50000"})
    key = "consumer.session.timeout.ms"
    assert described_entry(admin, GROUP, "g", key).value == "50000"
    admin.configs.alter(GROUP, "g", [change(key, "46000")], False)
    entry = described_entry(admin.reopen(), GROUP, "g", key)
    assert (entry.value, entry.source) == ("46000", ConfigSource.GROUP)
    assert entry.synonyms[-1] == ConfigSynonym(f"group.{key}", "50000", ConfigSource.DEFAULT)


@pytest.mark.parametrize("value", ["44999", "60001"])
def test_group_configs_stay_within_the_brokers_bounds(admin: AdminBroker, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"group\.consumer\.(min|max)\.session\.timeout\.ms"):
        admin.configs.alter(GROUP, "g", [change("consumer.session.timeout.ms", value)], False)


def test_client_metrics_are_kept_and_deleted(admin: AdminBroker) -> None:
    changes = [change("metrics", "org.apache.kafka"), change("match", "client_id=a.*")]
    admin.configs.alter(CLIENT_METRICS, "s", changes, False)
    again = admin.reopen()
    assert again.configs.resource_names(CLIENT_METRICS) == ["s"]
    assert described_entry(again, CLIENT_METRICS, "s", "interval.ms").value == "300000"
    gone = [Change(item.name, Operation.DELETE, None) for item in changes]
    again.configs.alter(CLIENT_METRICS, "s", gone, False)
    assert again.configs.resource_names(CLIENT_METRICS) == []
    assert again.configs.describe(CLIENT_METRICS, "s") == []


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("s", [change("interval.ms", "1")], InvalidRequestError),
        ("s", [change("metrics", None)], InvalidRequestError),
        ("s", [change("match", "nonsense")], InvalidRequestError),
        ("s", [change("match", "client_id=(")], InvalidRequestError),
        ("s", [change("match", f"client_id={'(' * 5000}{')' * 5000}")], InvalidRequestError),
        ("s", [change("match", "client_id=a{99999999999999999999}")], InvalidRequestError),
        ("s", [change("what", "1")], InvalidRequestError),
        ("", [], InvalidRequestError),
    ],
)
def test_bad_client_metrics_are_refused(
    admin: AdminBroker, name: str, changes: list[Change], error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        admin.configs.alter(CLIENT_METRICS, name, changes, False)


def test_group_changes_can_be_only_validated(admin: AdminBroker) -> None:
    admin.configs.alter(GROUP, "g", [change("consumer.session.timeout.ms", "46000")], True)
    assert admin.configs.resource_names(GROUP) == []


def test_resources_are_listed_by_kind(admin: AdminBroker) -> None:
    create_topic(admin, "b")
    create_topic(admin, "a")
    admin.configs.alter(GROUP, "g", [change("consumer.session.timeout.ms", "46000")], False)
    names = {kind: admin.configs.resource_names(kind) for kind in (TOPIC, CLIENT_METRICS, GROUP)}
    assert names == {TOPIC: ["a", "b"], CLIENT_METRICS: [], GROUP: ["g"]}


def test_an_unknown_kind_of_resource_is_refused(admin: AdminBroker) -> None:
    with pytest.raises(InvalidRequestError):
        admin.configs.describe(99, "x")
    with pytest.raises(InvalidRequestError):
        admin.configs.alter(99, "x", [], False)


def test_an_unknown_operation_is_refused() -> None:
    assert operation_of(3) is Operation.SUBTRACT
    with pytest.raises(InvalidRequestError):
        operation_of(9)


@pytest.mark.parametrize("own", [{}, {"segment.bytes": "2000"}], ids=["inherited", "its own"])
def test_a_config_that_a_cleaner_reads_while_it_changes_is_not_cached(
    admin: AdminBroker, monkeypatch: pytest.MonkeyPatch, own: dict[str, str]
) -> None:
    """A thread reads the defaults, the loop changes them, and the thread continues with the old ones."""
    image = create_topic(admin, "orders", configs=own)
    looked, go_on = threading.Event(), threading.Event()
    defaults = BrokerConfig.topic_defaults

    def read(config: BrokerConfig) -> dict[str, Any]:
        values = defaults(config)
        if threading.current_thread() is not threading.main_thread():
            looked.set()
            assert go_on.wait(60)
        return values

    def look() -> None:
        admin.topic_configs.log_config(image)
        looked.set()

    monkeypatch.setattr(BrokerConfig, "topic_defaults", read)
    admin.topic_configs.defaults_changed()
    cleaner = threading.Thread(target=look, daemon=True)
    cleaner.start()
    assert looked.wait(60)
    admin.configs.alter(BROKER, "1", [change("log.retention.ms", "6")], False)
    go_on.set()
    cleaner.join()
    assert admin.topic_configs.log_config(image).retention_ms == 6


STORE = "listener.name.ssl.ssl.keystore.location"


def test_stores_are_set_for_one_listener_of_one_broker(admin: AdminBroker) -> None:
    for name, key, message in (
        ("", STORE, "at default cluster level"),
        ("1", "ssl.keystore.location", "only per-listener using the listener prefix"),
        ("1", "listener.name.ssl.ssl.client.auth", "Unknown broker config name"),
        ("1", "listener.name.ssl.ssl.keystore.type.more", "Unknown broker config name"),
    ):
        with pytest.raises((InvalidRequestError, InvalidConfigError), match=message):
            admin.configs.alter(BROKER, name, [change(key, "x")], False)
    with pytest.raises(InvalidConfigError, match=r"ssl\.keystore\.type"):
        admin.configs.alter(BROKER, "1", [change("listener.name.ssl.ssl.keystore.type", "x")], False)
    admin.configs.alter(
        BROKER, "1", [change(STORE, "/a.pem"), change("listener.name.ssl.ssl.key.password", "p")], False
    )
    again = admin.reopen()
    assert again.config.listener_texts()[STORE] == "/a.pem"
    entries = {entry.name: entry for entry in again.configs.describe(BROKER, "1")}
    assert (entries[STORE].value, entries[STORE].source) == ("/a.pem", ConfigSource.DYNAMIC_BROKER)
    assert entries["listener.name.ssl.ssl.key.password"].value is None


# Cordoned log directories


def at_level_30(tmp_path: Path) -> AdminBroker:
    """Return a broker with two log directories, at the first metadata.version that knows cordoned ones."""
    admin = AdminBroker(tmp_path, {"log.dirs": f"{tmp_path}/a,{tmp_path}/b"})
    admin.controller.commit([level_record("metadata.version", 30)])
    return admin


def test_directories_are_cordoned_while_the_broker_runs(tmp_path: Path) -> None:
    admin = at_level_30(tmp_path)
    admin.configs.alter(BROKER, "1", [change("cordoned.log.dirs", f"{tmp_path}/a")], False)
    assert admin.log_manager.cordoned == {f"{tmp_path}/a"}
    create_topic(admin, "orders")
    admin.configs.alter(BROKER, "1", [change("cordoned.log.dirs", "*")], False)
    with pytest.raises(InvalidReplicationFactorError):
        create_topic(admin, "late")
    with pytest.raises(InvalidReplicationFactorError):
        admin.topics.check_widening("orders", 9)
    admin.configs.alter(BROKER, "1", [change("cordoned.log.dirs", None, Operation.DELETE)], False)
    assert admin.log_manager.cordoned == frozenset()
    create_topic(admin, "late")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("", "*", InvalidRequestError), ("1", "/elsewhere", InvalidConfigError), ("1", "*,/x", InvalidConfigError)],
)
def test_wrong_values_of_cordoned_log_dirs_are_refused(
    tmp_path: Path, name: str, value: str, error: type[KafkaError]
) -> None:
    admin = at_level_30(tmp_path)
    with pytest.raises(error):
        admin.configs.alter(BROKER, name, [change("cordoned.log.dirs", value)], False)
    assert admin.log_manager.cordoned == frozenset()


def test_an_older_level_knows_no_cordoned_directories(admin: AdminBroker) -> None:
    admin.controller.commit([level_record("metadata.version", 29)])
    with pytest.raises(InvalidConfigError, match=r"4\.3-IV0"):
        admin.configs.alter(BROKER, "1", [change("cordoned.log.dirs", "*")], False)


def set_by_kafka(admin: AdminBroker, name: str) -> None:
    """Set a key on brokers that Kafka has and Tidelog has not, as a log that Kafka wrote holds it."""
    admin.controller.commit(config_records((BROKER, name), {}, {"num.io.threads": "16"}))


def test_a_key_of_kafkas_that_is_not_known_here_is_described_without_its_value(admin: AdminBroker) -> None:
    set_by_kafka(admin, "")
    (entry,) = admin.configs.describe(BROKER, "")
    assert (entry.name, entry.value, entry.is_sensitive, entry.type) == ("num.io.threads", None, True, 0)
    assert entry.synonyms == [ConfigSynonym("num.io.threads", None, ConfigSource.DYNAMIC_DEFAULT_BROKER)]


@pytest.mark.parametrize("name", ["", "1"])
def test_a_key_that_kafka_set_forbids_no_other_change(admin: AdminBroker, name: str) -> None:
    set_by_kafka(admin, name)
    admin.configs.alter(BROKER, name, [change("log.retention.ms", "7")], False)
    assert described_entry(admin, BROKER, name, "log.retention.ms").value == "7"
    with pytest.raises(InvalidConfigError, match=r"num\.io\.threads"):
        admin.configs.alter(BROKER, name, [change("num.io.threads", "17")], False)
    admin.configs.alter(BROKER, name, [change("num.io.threads", None, Operation.DELETE)], False)
    assert admin.controller.image.configs[BROKER, name] == {"log.retention.ms": "7"}


def test_a_loggers_level_is_removed(admin: AdminBroker) -> None:
    logger = logging.getLogger("tests.of.a.removed.level")
    admin.configs.alter(LOGGER, "1", [change(logger.name, "DEBUG")], False)
    assert logger.level == logging.DEBUG
    admin.configs.alter(LOGGER, "1", [change(logger.name, None, Operation.DELETE)], False)
    assert logger.level == logging.NOTSET
