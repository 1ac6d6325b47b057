"""Unmodified clients that log in by OAUTHBEARER: signed tokens of an issuer with an endpoint, and unsecured ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import kafka
import kafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.support.aiokafka_client import until_closed
from tests.support.apache_kafka import console_producer, run_tool
from tests.support.broker import TidelogProcess, free_port
from tests.support.issuer import AUDIENCE, ISSUER, Endpoint, Issuer, unsecured, write_keys
from tests.support.kafka_python import read_to_end
from tests.support.secured_clients import RefusedError
from tidelog.broker.config.keys.security import SECURED_HANDLER, UNSECURED_HANDLER

VALUES = [b"one", b"two"]
WAIT_S = 60
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGIN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
TokenSource = Callable[[], str]


class World:
    """A broker with a listener for unsecured tokens, one whose keys have an endpoint, one whose keys are a file."""

    def __init__(self, directory: Path, endpoint: Endpoint, issuer: Issuer) -> None:
        self.directory, self.endpoint, self.issuer = directory, endpoint, issuer
        for key_id in ("rsa", "es256"):
            issuer.key(key_id)
        names = ("UNSECURED", "SIGNED", "FILED")
        self.address = {name: f"127.0.0.1:{free_port()}" for name in names}
        texts = {
            "listeners": ",".join(
                ("PLAINTEXT://127.0.0.1:0", *(f"{name}://{address}" for name, address in self.address.items()))
            ),
            "listener.security.protocol.map": ",".join(
                ("PLAINTEXT:PLAINTEXT", *(f"{name}:SASL_PLAINTEXT" for name in names))
            ),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }
        for name, handler in zip(names, (UNSECURED_HANDLER, SECURED_HANDLER, SECURED_HANDLER), strict=True):
            prefix = f"listener.name.{name.lower()}.oauthbearer"
            texts[f"{prefix}.sasl.server.callback.handler.class"] = handler
            texts[f"{prefix}.sasl.jaas.config"] = f"{MODULE} required;"
        prefix = "listener.name.{}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url"
        texts[prefix.format("signed")] = endpoint.url
        texts[prefix.format("filed")] = write_keys(issuer, directory / "keys.json")
        self.broker = TidelogProcess(directory / "broker", texts)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    issuer = Issuer()
    with Endpoint(issuer) as endpoint:
        world = World(tmp_path_factory.mktemp("oauth"), endpoint, issuer)
        with world.broker:
            yield world


def by_librdkafka(bootstrap: str, source: TokenSource, topic: str) -> list[bytes]:
    """Produce and read with two clients, each of which asks the source for its tokens."""
    refused: list[str] = []

    def on_error(error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            refused.append(error.str())

    conf: dict[str, Any] = {
        "bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _config: (source(), time.time() + 300), "error_cb": on_error,
        "logger": logging.getLogger("quiet"),
    }  # fmt: skip
    return produce_and_read(conf, topic, refused)


def produce_and_read(conf: dict[str, Any], topic: str, refused: list[str]) -> list[bytes]:
    producer = Producer(conf)
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    deadline = time.monotonic() + WAIT_S
    while producer.flush(0.1) and time.monotonic() < deadline:
        if refused:
            producer.purge()
            raise RefusedError(refused[0])
    consumer = Consumer({**conf, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: list[bytes] = []
    while len(read) < len(VALUES) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            read.append(message.value() or b"")
    consumer.close()
    return read


def by_aiokafka(bootstrap: str, source: TokenSource, topic: str) -> list[bytes]:
    class Provider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return source()

    async def run() -> list[bytes]:
        settings = {
            "bootstrap_servers": bootstrap, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Provider(),
        }  # fmt: skip
        producer = aiokafka.AIOKafkaProducer(**settings)
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", group_id=topic, **settings)
        try:
            await producer.start()
            for value in VALUES:
                await producer.send_and_wait(topic, value, partition=0)
            await consumer.start()
            return [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value for _ in VALUES]
        finally:
            await producer.stop()
            await consumer.stop()
            await until_closed()

    try:
        return asyncio.run(run())
    except aiokafka.errors.KafkaError as error:
        raise RefusedError(repr(error)) from error


def by_kafka_python(bootstrap: str, source: TokenSource, topic: str) -> list[bytes]:
    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return source()

    settings = {
        "bootstrap_servers": bootstrap, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Provider(),
    }  # fmt: skip
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value, partition=0).get(WAIT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, auto_offset_reset="earliest", group_id=topic, consumer_timeout_ms=WAIT_S * 1000, **settings
    )
    read = [message.value for _, message in zip(VALUES, consumer, strict=False)]
    consumer.close()
    return read


SAYS_SO = {"librdkafka": "invalid_token", "aiokafka": "Unable to bootstrap"}
"""Aiokafka leaves when it reads a refusal, and says no more."""
CLIENTS = {"librdkafka": by_librdkafka, "aiokafka": by_aiokafka, "kafka-python": by_kafka_python}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("listener", ["UNSECURED", "SIGNED", "FILED"])
def test_a_client_with_a_token_is_served(world: World, client: str, listener: str) -> None:
    def source() -> str:
        return (
            unsecured() if listener == "UNSECURED" else world.issuer.token("rsa" if client == "aiokafka" else "es256")
        )

    assert CLIENTS[client](world.address[listener], source, f"{client}-{listener}") == VALUES


def test_librdkafkas_own_unsecured_tokens_are_accepted(world: World) -> None:
    conf = {
        "bootstrap.servers": world.address["UNSECURED"], "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER", "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=ann lifeSeconds=60",
    }  # fmt: skip
    assert produce_and_read(conf, "own-unsecured", []) == VALUES


@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])
@pytest.mark.parametrize("wrong", ["unsecured", "expired", "another key", "another audience"])
def test_a_wrong_token_is_refused_in_the_clients_own_words(world: World, client: str, wrong: str) -> None:
    token = {
        "unsecured": unsecured,
        "expired": lambda: world.issuer.token(exp=int(time.time()) - 100),
        "another key": lambda: Issuer().token("es256"),
        "another audience": lambda: world.issuer.token(aud="elsewhere"),
    }[wrong]
    with pytest.raises(RefusedError, match=SAYS_SO[client]):
        CLIENTS[client](world.address["SIGNED"], token, "never")


def test_a_new_key_of_the_issuer_is_fetched(world: World) -> None:
    address = world.address["SIGNED"]
    assert by_aiokafka(address, world.issuer.token, "old-key") == VALUES
    asked = world.endpoint.requests
    with pytest.raises(RefusedError):  # tells of the key that is not known yet
        by_aiokafka(address, lambda: world.issuer.token("es256-new"), "new-key")
    for _ in range(3):  # invented key ids bring no further looks
        with pytest.raises(RefusedError):
            by_aiokafka(address, lambda: Issuer().token("es256-invented"), "never")
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            assert by_aiokafka(address, lambda: world.issuer.token("es256-new"), "new-key") == VALUES
            break
        except RefusedError:
            assert time.monotonic() < deadline
    assert world.endpoint.requests == asked + 1


def test_a_session_ends_with_its_token_and_continues_with_the_next(world: World) -> None:
    """Librdkafka authenticates again before its session is over (KIP-368)."""
    made: list[float] = []

    def token(_config: object) -> tuple[str, float]:
        made.append(time.time())
        return world.issuer.token(exp=int(made[-1]) + 7), made[-1] + 3  # so the next one is there in time

    failed: list[KafkaError] = []
    producer = Producer({
        "bootstrap.servers": world.address["SIGNED"], "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token, "error_cb": failed.append,
        "logger": logging.getLogger("quiet"),
    })  # fmt: skip
    delivered: list[KafkaError | None] = []
    deadline = time.monotonic() + WAIT_S
    while len(made) < 2 or world.broker.log_path.read_text().count('"reauthentication"') < 1:
        assert time.monotonic() < deadline
        producer.produce("sessions", b"value", on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.05)
    assert not producer.flush(WAIT_S)
    assert set(delivered) == {None}
    assert not failed
    assert "eyJ" not in world.broker.log_path.read_text()  # no token is in the log


@pytest.mark.java
def test_javas_client_is_served(world: World) -> None:
    (world.directory / "token").write_text(world.issuer.token("rsa"))
    url = (world.directory / "token").as_uri()
    logins = {
        "UNSECURED": {"sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="ann";'},
        "SIGNED": {
            "sasl.jaas.config": f"{MODULE} required;",
            "sasl.login.callback.handler.class": LOGIN_HANDLER,
            "sasl.oauthbearer.token.endpoint.url": url,
        },
    }
    for listener, login in logins.items():
        properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **login}
        config = world.directory / f"{listener}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        allowed = tuple(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{what}={where}"
                        for what, where in (("urls", url), ("files", url.removeprefix("file://"))))  # fmt: skip
        server = ["--bootstrap-server", world.address[listener], "--topic", f"java-{listener}"]
        producing = [*server, "--command-config", str(config), "--command-property", "max.block.ms=20000"]
        done = run_tool(console_producer(), producing, stdin="one\ntwo\n", java_options=allowed)
        assert done.returncode == 0, done.stdout + done.stderr
        found = read_to_end(world.broker.bootstrap, f"java-{listener}")
        assert [record.value for record in found] == VALUES
