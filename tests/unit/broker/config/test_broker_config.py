from __future__ import annotations

import logging
import re
import string
from pathlib import Path

import pytest

from tidelog.broker.config.broker_config import (
    BROKER_CONFIG_DEF,
    BrokerConfig,
    Endpoint,
    ServeOptions,
    has_no_effect,
    is_known,
    may_be_shown,
)
from tidelog.broker.config.keys.admin import ADMIN_BEARER_KEYS, ADMIN_TLS_KEYS
from tidelog.broker.config.keys.broker import NO_EFFECT
from tidelog.broker.config.sources import parse_properties
from tidelog.log.config import SYNONYMS, LogConfig
from tidelog.protocol.config_def import ConfigError, ConfigKey


def test_defaults_work_with_one_node() -> None:
    config = BrokerConfig({})
    assert config.node_id == 1
    assert config.listeners == [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]
    assert config.advertised_listeners == {}
    assert config.log_dirs == ["data"]
    assert config.get_bool("auto.create.topics.enable")
    for key in ("offsets.topic", "transaction.state.log"):
        assert config.get_int(f"{key}.replication.factor") == 1
    assert config.get_int("transaction.state.log.min.isr") == 1


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nnode.id=2\nlog.dirs=/a\nbroker.rack=here\n")
    environment = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_NODE_ID": "3", "KAFKA_LOG_DIRS": "/b"}
    options = ServeOptions(data_dir="/d")
    config = BrokerConfig.load(str(file), environment, ["num.partitions=4", "log.dirs=/c"], options)
    assert config.get("broker.rack") == "here"
    assert config.node_id == 3
    assert config.get_int("num.partitions") == 4
    assert config.log_dirs == ["/d"]


@pytest.mark.parametrize(
    ("options", "listeners", "expected"),
    [
        (ServeOptions(), None, "PLAINTEXT://127.0.0.1:9092"),
        (ServeOptions(port=0), None, "PLAINTEXT://127.0.0.1:0"),
        (ServeOptions(host="0.0.0.0"), None, "PLAINTEXT://0.0.0.0:9092"),
        (ServeOptions(host="::1", port=1), None, "PLAINTEXT://[::1]:1"),
        (ServeOptions(port=7), "PLAINTEXT://a:1", "PLAINTEXT://a:7"),
        (ServeOptions(port=7), "PLAINTEXT://[::1]:1", "PLAINTEXT://[::1]:7"),
        (ServeOptions(host="b"), "PLAINTEXT://:1", "PLAINTEXT://b:1"),
    ],
)
def test_host_and_port_change_the_first_listener(options: ServeOptions, listeners: str | None, expected: str) -> None:
    overrides = [] if listeners is None else [f"listeners={listeners}"]
    config = BrokerConfig.load(None, {}, overrides, options)
    assert str(config.listeners[0]) == expected


def test_several_listeners_with_names_of_their_own() -> None:
    config = BrokerConfig(
        {
            "listeners": "INSIDE://:9092, outside://0.0.0.0:9093",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "advertised.listeners": "OUTSIDE://kafka.example.com:443",
        }
    )
    assert [endpoint.listener_name for endpoint in config.listeners] == ["INSIDE", "OUTSIDE"]
    assert config.advertised_listeners == {"OUTSIDE": Endpoint("OUTSIDE", "PLAINTEXT", "kafka.example.com", 443)}


def test_the_controllers_listener_of_a_kafka_configuration_is_not_opened() -> None:
    config = BrokerConfig(
        {
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }
    )
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://:9092"]
    assert list(config.advertised_listeners) == ["PLAINTEXT"]
    assert config.unknown_keys == []


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("listeners", "PLAINTEXT://h:70000", "0 to 65535"),
        ("listeners", "PLAINTEXT://h:", "HOST:PORT"),
        ("listeners", "h:9092", "NAME://HOST:PORT"),
        ("listeners", "INSIDE://h:1", "listener.security.protocol.map"),
        ("listeners", "OTHER://h:1", "listener.security.protocol.map"),
        ("listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", "once"),
        ("listeners", "", "at least one"),
        ("advertised.listeners", "PLAINTEXT://h", "HOST:PORT"),
        ("advertised.listeners", "SSL://h:1", "names that listeners has: PLAINTEXT"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:1", "that clients can reach"),
        ("advertised.listeners", "PLAINTEXT://[::]:1", "that clients can reach"),
        ("listener.security.protocol.map", "PLAINTEXT", "NAME:PROTOCOL"),
        ("num.partitions", "0", "1 or more"),
        ("num.partitions", "many", "1 or more"),
        ("log.retention.ms", "1d", "64-bit"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("compression.type", "lzma", "zstd"),
        ("group.consumer.migration.policy", "never", "upgrade"),
    ],
)
def test_a_bad_value_is_reported_in_one_line(key: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({key: value})
    text = str(caught.value)
    assert key in text
    assert allowed in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("texts", "bound"),
    [
        ({"group.consumer.session.timeout.ms": "10000"}, "group.consumer.min.session.timeout.ms, which is 45000"),
        ({"group.share.assignment.interval.ms": "15001"}, "group.share.max.assignment.interval.ms, which is 15000"),
        ({"group.streams.num.standby.replicas": "3"}, "group.streams.max.standby.replicas, which is 2"),
        (
            {"group.share.heartbeat.interval.ms": "6000", "group.share.min.heartbeat.interval.ms": "7000"},
            "group.share.min.heartbeat.interval.ms, which is 7000",
        ),
    ],
)
def test_values_for_groups_beyond_their_bounds_are_refused(texts: dict[str, str], bound: str) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(texts))}; allowed: nothing beyond {bound}"):
        BrokerConfig(texts)


def test_a_bound_may_be_set_without_the_value_it_bounds() -> None:
    assert BrokerConfig({"group.share.min.assignment.interval.ms": "500"}).get_int("group.share.max.size") == 200


def test_a_port_used_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="each port once"):
        BrokerConfig({"listeners": "A://a:1,B://b:1", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"})


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.properties"):
        BrokerConfig.load("/nowhere.properties")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"a=\xff\xfe")
    with pytest.raises(ConfigError, match=r"server\.properties"):
        BrokerConfig.load(str(file))


def test_the_cluster_id_is_read_as_the_apache_image_reads_it() -> None:
    assert BrokerConfig.load(None, {"CLUSTER_ID": "a"}).get("cluster.id") == "a"
    assert BrokerConfig.load(None, {"CLUSTER_ID": "a"}, ["cluster.id=b"]).get("cluster.id") == "b"


def test_a_malformed_override_is_reported() -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        BrokerConfig.load(None, {}, ["nonsense"])


@pytest.mark.parametrize(
    ("texts", "node_id"),
    [({}, 1), ({"broker.id": "5"}, 5), ({"node.id": "6"}, 6), ({"node.id": "6", "broker.id": "5"}, 6)],
)
def test_node_id_may_be_given_by_its_older_name(texts: dict[str, str], node_id: int) -> None:
    assert BrokerConfig(texts).node_id == node_id


def test_log_dirs_win_over_log_dir() -> None:
    assert BrokerConfig({"log.dir": "/a", "log.dirs": "/b, /c"}).log_dirs == ["/b", "/c"]


def test_unknown_keys_warn_once_and_keys_without_effect_are_listed(caplog: pytest.LogCaptureFixture) -> None:
    misspelt = {"no.such.key": "1", "num.partitons": "3"}
    config = BrokerConfig({**misspelt, "num.io.threads": "8", "control.plane.listener.name": "C"})
    with caplog.at_level(logging.INFO):
        config.log_unknown_keys()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "configuration keys without effect here: control.plane.listener.name, num.io.threads"),
        ("WARNING", "unknown configuration key no.such.key, ignored"),
        ("WARNING", "unknown configuration key num.partitons, ignored; the nearest is num.partitions"),
    ]


PRIVATE_KEY = """ssl.keystore.key=-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj
MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDuictGeurT8jNbvJZHtCSuYEvu
abcdefgh==
-----END PRIVATE KEY-----
eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE3MDAwMDAwMDAsIm4iOiJ4In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk
hunter2
"""


def test_lines_that_may_be_of_a_secret_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A value of several lines needs a backslash at the end of each, and another file may be given by mistake."""
    config = BrokerConfig(parse_properties(PRIVATE_KEY))
    with caplog.at_level(logging.INFO):
        config.log_unknown_keys()
    assert [record.getMessage() for record in caplog.records] == [
        "unknown configuration keys, ignored: 6 that are not shown, as they may be lines of a secret"
    ]


@pytest.mark.parametrize("key", ["listener", "my.plugin.maxRetries", "confluent.support.metrics.enable"])
def test_unknown_keys_in_the_form_of_keys_are_shown(key: str) -> None:
    assert may_be_shown(key)


def test_nothing_is_logged_about_known_keys(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        BrokerConfig({"num.partitions": "2"}).log_unknown_keys()
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "is_read"),
    [
        ("listener.name.internal.ssl.keystore.location", True),
        ("listener.name.internal.scram-sha-256.sasl.jaas.config", True),
        ("listener.name.INTERNAL.ssl.client.auth", False),
        ("listener.name.internal.ssl.client.auht", False),
        ("listener.name.internal.max.connections", False),
        ("listener.name.internal", False),
    ],
)
def test_a_key_of_a_listener_is_known_if_it_is_read(key: str, is_read: bool) -> None:
    """A misspelt key, or a limit that is not supported for one listener, was ignored without a word."""
    assert is_known(key) is is_read
    assert (BrokerConfig({key: "1"} if not is_read else {}).unknown_keys == [key]) is not is_read


def test_no_key_is_both_declared_and_without_effect() -> None:
    assert not NO_EFFECT & set(BROKER_CONFIG_DEF.keys)
    assert has_no_effect("zookeeper.connect")
    assert not has_no_effect("controller.listener.names")


def test_every_server_synonym_of_a_topic_key_is_declared() -> None:
    names = {synonym.server_key for synonyms in SYNONYMS.values() for synonym in synonyms}
    assert names <= set(BROKER_CONFIG_DEF.keys)


@pytest.mark.parametrize(
    ("texts", "attribute", "expected"),
    [
        ({"log.retention.hours": "2"}, "retention_ms", 7_200_000),
        ({"log.retention.minutes": "5", "log.retention.hours": "2"}, "retention_ms", 300_000),
        ({"log.retention.ms": "5", "log.retention.minutes": "5"}, "retention_ms", 5),
        ({"log.retention.hours": "-1"}, "retention_ms", -1),
        ({"log.roll.hours": "1"}, "segment_ms", 3_600_000),
        ({"message.max.bytes": "77"}, "max_message_bytes", 77),
        ({"log.segment.bytes": "1000"}, "segment_bytes", 1000),
    ],
)
def test_server_keys_give_topics_their_defaults(texts: dict[str, str], attribute: str, expected: int) -> None:
    assert getattr(LogConfig(BrokerConfig(texts).topic_defaults()), attribute) == expected


def test_topics_have_no_defaults_of_the_server_when_nothing_is_set() -> None:
    assert BrokerConfig({}).topic_defaults() == {}


def test_dynamic_values_override_static_ones() -> None:
    config = BrokerConfig({"log.retention.ms": "5", "max.connections": "10"})
    config.set_dynamic({"log.retention.ms": "6"})
    assert config.get_int("log.retention.ms") == 6
    assert config.topic_defaults() == {"retention.ms": 6}
    config.set_dynamic({})
    assert config.get_int("log.retention.ms") == 5


def test_a_bad_dynamic_value_changes_nothing() -> None:
    config = BrokerConfig({})
    with pytest.raises(ConfigError):
        config.set_dynamic({"max.connections": "-1"})
    assert config.get_int("max.connections") == 2**31 - 1


def test_values_are_read_by_type() -> None:
    config = BrokerConfig({"controller.listener.names": "A, B", "broker.rack": "r"})
    assert config.get_list("controller.listener.names") == ["A", "B"]
    assert config.get_list("log.dirs") == []
    assert config.get_str("broker.rack") == "r"
    assert config.values["num.partitions"] == 1


ROOT = Path(__file__).resolve().parents[4]
DECLARATIONS = set((ROOT / "broker" / "config" / "keys").glob("*.py"))
COMPOSED = (
    "group.consumer.",
    "group.share.",
    "group.streams.",
    "share.coordinator.state.topic.",
    "sasl.oauthbearer.jwks.endpoint.",
)
"""Such keys are read by the last part of their names, by group protocol, internal topic and kind of interval."""
CONSTANTS = {
    key: name
    for path in DECLARATIONS
    for name, key in re.findall(r'^(\w+) = "([\w.-]+)"', path.read_text(), re.MULTILINE)
}
"""Keys that are declared by a constant, which their readers import."""
OF_TOPICS = {synonym.server_key for synonyms in SYNONYMS.values() for synonym in synonyms}


NAME_CHARACTERS = string.ascii_letters + string.digits + "_.-"


class Names:
    """Names in source text: identifiers, quoted names, and the ends of quoted names after each dot."""

    def __init__(self, source: str) -> None:
        self.identifiers = set(re.findall(r"\w+", source))
        self.quoted: set[str] = set()
        for text in set(source.split('"')[:-1]):
            token = text[len(text.rstrip(NAME_CHARACTERS)) :]
            parts = token.split(".")
            self.quoted.update(".".join(parts[at:]) for at in range(0 if token == text else 1, len(parts)))


def is_read(key: str, source: Names) -> bool:
    """Return whether the code reads a key: by name or constant, by a coordinator's field, or as a topic key's
    default."""
    if key in OF_TOPICS or CONSTANTS.get(key) in source.identifiers:
        return True
    names = {key} | {key.removeprefix(prefix) for prefix in COMPOSED if key.startswith(prefix)}
    names |= {name.removeprefix(bound) for name in names for bound in ("min.", "max.")}
    return any(name in source.quoted or name.replace(".", "_") in source.identifiers for name in names)


OF_ONE_MEANING = {"sasl.oauthbearer.jwt.validator.class", "transaction.two.phase.commit.enable"}
"""Keys whose allowed values mean the same here, as their descriptions say."""
COORDINATOR_CONFIG = ROOT / "broker" / "coordinator" / "config.py"


def is_fixed(key: ConfigKey) -> bool:
    """Return whether a key can have only one value or meaning, so that no code has to read it."""
    if key.name in OF_ONE_MEANING:
        return True
    return key.validator is not None and key.validator.allowed.startswith(("nothing but ", "no value"))


def text_without_fields(path: Path) -> str:
    """Return a module's text; of the coordinators' configuration without its fields, which are no readers."""
    text = path.read_text()
    return re.sub(r"^    \w+: .*$", "", text, flags=re.MULTILINE) if path == COORDINATOR_CONFIG else text


def test_every_declared_key_has_a_reader() -> None:
    assert len(DECLARATIONS) > 5
    paths = [path for folder in ("broker", "log", "cleaner", "tidelog") for path in (ROOT / folder).rglob("*.py")]
    source = Names("\n".join(text_without_fields(path) for path in paths if path not in DECLARATIONS))
    read_as = {key.name: key.name for key in BROKER_CONFIG_DEF}
    by_code_of_listeners = (*ADMIN_TLS_KEYS, *ADMIN_BEARER_KEYS)
    read_as |= {key.name: key.name.removeprefix("admin.") for key in by_code_of_listeners}
    unread = [key.name for key in BROKER_CONFIG_DEF if not is_read(read_as[key.name], source) and not is_fixed(key)]
    assert not unread, f"declared, and read nowhere: {unread}; they belong in NO_EFFECT"
    assert not is_read("queued.max.requests", source)
    assert not is_read("group.coordinator.append.linger.ms", source)


@pytest.mark.parametrize("text", ["10.0.0.1:x", "10.0.0.1", ":5", "10.0.0.1:-1"])
def test_a_connection_limit_without_a_valid_address_refuses_the_start(text: str) -> None:
    """Otherwise each connection from that address would be refused."""
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        BrokerConfig({"max.connections.per.ip.overrides": text})


@pytest.mark.parametrize("text", ["", "10.0.0.1:5", "10.0.0.1:5, ::1:0,", "node.example:5"])
def test_connection_limits_of_addresses_are_accepted(text: str) -> None:
    assert BrokerConfig({"max.connections.per.ip.overrides": text}).get_str("max.connections.per.ip.overrides") == text


def test_the_error_of_a_file_named_by_the_environment_names_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "image.properties"
    file.write_text("a=\\u00zz\n")
    with pytest.raises(ConfigError, match=f"^TIDELOG_CONFIG_FILES {file}: malformed"):
        BrokerConfig.load(None, {"TIDELOG_CONFIG_FILES": str(file)})


def test_a_directory_that_is_named_twice_refuses_the_start() -> None:
    """Its own lock would refuse the broker, with the broker's own process as the one that uses the directory."""
    with pytest.raises(ConfigError, match=r"log\.dirs; allowed: different directories"):
        BrokerConfig({"log.dirs": "one,./one"})
    assert BrokerConfig({"log.dirs": "one,two"}).log_dirs == ["one", "two"]


@pytest.mark.parametrize("directories", ["data,data/logs-0", "/data/a/b,/data"])
def test_a_directory_in_another_one_refuses_the_start(directories: str) -> None:
    """It may have the name of a partition, and would be renamed as one that belongs to no topic."""
    with pytest.raises(ConfigError, match="none of which lies in another"):
        BrokerConfig({"log.dirs": directories})
    assert BrokerConfig({"log.dirs": "/data,/data-2"}).log_dirs == ["/data", "/data-2"]
