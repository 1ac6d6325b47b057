"""``Broker(security=...)``: TLS, users and ACLs in one argument, and the settings for each client."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

import tidelog
from tests.support.apache_kafka import run_tool
from tidelog.broker_process import BrokerProcessError
from tidelog.broker_security import SecuredBroker
from tidelog.cli import main
from tidelog.client.connection import Client
from tidelog.client.security import Security as ClientSecurity
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

ANN = 'p "a\\ss; word'
SECURITY = tidelog.Security(
    users={"ann": ANN, "bob": "secret", "o'x y": "odd"},
    acls={"ann": ["all topic orders", "read group *", "write topic team-*"], "bob": ["describe topic orders"]},
)


@pytest.fixture(scope="module")
def broker() -> Iterator[tidelog.Broker]:
    with tidelog.Broker({"num.partitions": 1}, security=SECURITY) as broker:
        assert deliver(broker.clients.librdkafka("ann"), "orders") is None
        yield broker


def quiet(settings: dict[str, object]) -> dict[str, object]:
    return {**settings, "logger": logging.getLogger("quiet")}


def deliver(settings: dict[str, object], topic: str) -> KafkaError | None:
    """Produce one record. Returns its error."""
    errors: list[KafkaError | None] = []
    producer = Producer(quiet(settings))
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    assert not producer.flush(60)
    return errors[0]


def test_a_user_may_do_only_what_acls_allow(broker: tidelog.Broker) -> None:
    ann, bob = broker.clients.librdkafka("ann"), broker.clients.librdkafka("bob")
    for settings, topic in ((bob, "orders"), (ann, "others")):
        error = deliver(settings, topic)
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer(quiet({**ann, "group.id": "g", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["orders"])
    message = consumer.poll(60)
    assert message is not None
    assert message.value() == b"value"
    consumer.close()


def test_a_user_who_may_not_ask_for_the_admin_interface_is_told(
    broker: tidelog.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "bob.properties"
    profile.write_text("".join(f"{key}={value}\n" for key, value in broker.clients.java("bob").items()))
    for command in (["find", "orders", "--key", "1"], ["compaction", "status"]):
        assert main([*command, "--profile", str(profile)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "address of the admin interface, which needs DESCRIBE_CONFIGS of the cluster: " in line


def test_each_python_client_has_its_settings(broker: tidelog.Broker) -> None:
    consumer = kafka.KafkaConsumer(**broker.clients.kafka_python("bob"))
    assert "orders" in consumer.topics()
    consumer.close()

    async def ask() -> set[str]:
        client = aiokafka.AIOKafkaConsumer(**broker.clients.aiokafka("ann"))
        await client.start()
        try:
            return set(await client.topics())
        finally:
            await client.stop()

    assert "orders" in asyncio.run(ask())


def test_a_user_with_an_odd_name_logs_in(broker: tidelog.Broker) -> None:
    settings = {name: text for name, text in broker.clients.java("o'x y").items() if name != "bootstrap.servers"}
    with Client(broker.bootstrap, security=ClientSecurity(settings)) as client:
        assert client.call(MetadataRequest(topics=None), MetadataResponse).topics == []


def test_a_restart_keeps_certificate_users_and_acls(broker: tidelog.Broker) -> None:
    ann, certificate = broker.clients.librdkafka("ann"), broker.clients.ca.read_bytes()
    broker.restart()
    assert broker.clients.ca.read_bytes() == certificate
    assert deliver(ann, "team-1") is not None  # ann may write there, but not create it
    assert deliver(ann, "orders") is None


def test_passwords_are_in_no_command_line_and_files_are_the_owners(broker: tidelog.Broker) -> None:
    with open(f"/proc/{broker.pid}/cmdline") as file:
        assert "odd" not in file.read()
    directory = broker.clients.ca.parent
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(directory / "server.properties").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(directory / "server.pem").st_mode) == 0o600


def test_nothing_is_left_and_settings_are_known_while_it_runs() -> None:
    security = tidelog.Security(users={"ann": "a"}, tls=False, mechanism="PLAIN")
    with tidelog.Broker(security=security) as broker:
        directory = broker.clients.ca.parent
        assert broker.clients.librdkafka("ann")["security.protocol"] == "SASL_PLAINTEXT"
        assert deliver(broker.clients.librdkafka("ann"), "free") is None  # without ACLs users may do everything
        with pytest.raises(KafkaException):
            Producer(quiet({**broker.clients.librdkafka("ann"), "sasl.password": "wrong"})).list_topics(timeout=2)
    assert not directory.exists()
    with pytest.raises(BrokerProcessError):
        _ = broker.clients


def test_tls_alone_needs_no_user() -> None:
    with tidelog.Broker(security=tidelog.Security()) as broker:
        assert deliver(broker.clients.librdkafka(), "free") is None


@pytest.mark.java
def test_kafkas_tools_take_the_properties(broker: tidelog.Broker) -> None:
    clients: SecuredBroker = broker.clients
    config = clients.ca.parent / "ann.properties"
    config.write_text("".join(f"{key}={text}\n" for key, text in clients.java("bob").items()).replace("\\", "\\\\"))
    words = ["--bootstrap-server", broker.bootstrap, "--command-config", str(config), "--list"]
    done = run_tool("org.apache.kafka.tools.TopicCommand", words)
    assert done.stdout.split() == ["orders"], done.stderr
