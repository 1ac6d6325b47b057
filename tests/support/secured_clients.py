"""Clients of a secured listener: each one writes values to a topic and reads them back.

Security        protocol, trust and identity of a client; its methods give them as the settings of each library
CLIENTS         name -> ``run(bootstrap, security, topic, values)``, which returns the values that it read back
                Raises RefusedError with the client's own message if the client reports that it was refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer

from tests.support.aiokafka_client import aiokafka, until_closed
from tests.support.apache_kafka import CONSOLE_CONSUMER, console_producer, run_tool
from tests.support.certificates import Pair
from tests.support.requirements import require_tool

WAIT_S = 60


class RefusedError(Exception):
    """A client reported that it may not connect. The text is the client's own."""


@dataclass(frozen=True)
class Security:
    """A client's settings of a secured connection. ``pair`` is its certificate; no ``mechanism``: no login."""

    protocol: str
    ca: Path
    pair: Pair | None = None
    mechanism: str = ""
    user: str = ""
    password: str = ""

    @property
    def jaas(self) -> str:
        module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
        password = self.password.replace("\\", "\\\\").replace('"', '\\"')
        options = f'username="{self.user}" password="{password}"'
        return f"org.apache.kafka.common.security.{module} required {options};"

    def java(self) -> dict[str, str]:
        properties = {"security.protocol": self.protocol}
        if "SSL" in self.protocol:
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        if self.pair is not None:
            properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.pair.pem)}
        if self.mechanism:
            properties |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self.jaas}
        return properties

    def librdkafka(self) -> dict[str, Any]:
        conf: dict[str, Any] = {"security.protocol": self.protocol.lower()}
        if "SSL" in self.protocol:
            conf["ssl.ca.location"] = str(self.ca)
        if self.pair is not None:
            conf |= {"ssl.certificate.location": str(self.pair.certificate), "ssl.key.location": str(self.pair.key)}
        if self.mechanism:
            conf |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
        return conf

    def python(self) -> dict[str, Any]:
        """Return the settings of aiokafka and kafka-python."""
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if self.mechanism:
            settings |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        return settings


def by_librdkafka(bootstrap: str, security: Security, topic: str, values: list[bytes]) -> list[bytes]:
    refused: list[str] = []

    def on_error(error: KafkaError) -> None:
        if error.code() in (KafkaError._SSL, KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN):
            refused.append(f"{error.name()} {error.str()}")

    conf = {
        "bootstrap.servers": bootstrap,
        "error_cb": on_error,
        "logger": logging.getLogger("quiet"),
        **security.librdkafka(),
    }
    producer = Producer(conf)
    for value in values:
        producer.produce(topic, value, partition=0)
    deadline = time.monotonic() + WAIT_S
    while producer.flush(0.1) and time.monotonic() < deadline:
        if refused:
            for _ in range(30):  # the reason may come after the report that all brokers are down
                producer.flush(0.1)
                if len(refused) > 1:
                    break
            producer.purge()
            raise RefusedError("; ".join(refused))
    consumer = Consumer({**conf, "group.id": f"{topic}-librdkafka", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: list[bytes] = []
    while len(read) < len(values) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            read.append(message.value() or b"")
    consumer.close()
    return read


def by_kcat(bootstrap: str, security: Security, topic: str, values: list[bytes]) -> list[bytes]:
    kcat = require_tool("kcat", "apt-get install kcat")
    words = [kcat, "-b", bootstrap, "-t", topic]
    words += [word for key, value in security.librdkafka().items() for word in ("-X", f"{key}={value}")]

    def run(*more: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run([*words, *more], input=stdin, capture_output=True, timeout=WAIT_S, check=False)
        if done.returncode:
            raise RefusedError(done.stderr.decode())
        return done.stdout

    run("-P", "-X", "message.timeout.ms=5000", stdin=b"\n".join(values) + b"\n")
    return run("-C", "-e", "-q", "-o", "beginning").splitlines()


def by_aiokafka(bootstrap: str, security: Security, topic: str, values: list[bytes]) -> list[bytes]:
    settings = security.python() | {"bootstrap_servers": bootstrap}
    if "SSL" in security.protocol:
        pair = security.pair
        files = {} if pair is None else {"certfile": str(pair.certificate), "keyfile": str(pair.key)}
        settings["ssl_context"] = aiokafka.helpers.create_ssl_context(cafile=str(security.ca), **files)
    log = LogCapture("aiokafka")

    async def run() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(**settings)
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", group_id=f"{topic}-aio", **settings)
        try:
            await producer.start()
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)
            await consumer.start()
            return [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value for _ in values]
        finally:
            await producer.stop()
            await consumer.stop()
            await until_closed()

    with log:
        try:
            return asyncio.run(run())
        except aiokafka.errors.KafkaError as error:
            raise RefusedError(f"{error!r} {log.text()}") from error


KAFKA_PYTHON = """
import json, logging, sys, warnings
logging.basicConfig(level=logging.WARNING)
warnings.simplefilter("ignore")
import kafka, kafka.errors
settings, topic, values = json.loads(sys.stdin.read())
try:
    producer = kafka.KafkaProducer(**settings)
    for value in values:
        producer.send(topic, value.encode(), partition=0).get(60)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", group_id=topic + "-py",
                                   consumer_timeout_ms=60000, **settings)
    print(json.dumps([message.value.decode() for _, message in zip(values, consumer)]))
    consumer.close()
except kafka.errors.KafkaError as error:
    sys.exit(repr(error))
"""


def by_kafka_python(bootstrap: str, security: Security, topic: str, values: list[bytes]) -> list[bytes]:
    """Write and read in another process, because kafka-python leaves the sockets of a refused producer open."""
    settings = security.python() | {"bootstrap_servers": bootstrap, "bootstrap_timeout_ms": 2_000}
    if "SSL" in security.protocol:
        settings["ssl_cafile"] = str(security.ca)
    if security.pair is not None:
        settings |= {"ssl_certfile": str(security.pair.certificate), "ssl_keyfile": str(security.pair.key)}
    given = json.dumps([settings, topic, [value.decode() for value in values]])
    done = subprocess.run(
        [sys.executable, "-c", KAFKA_PYTHON], input=given, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RefusedError(done.stderr)
    return [value.encode() for value in json.loads(done.stdout)]


def by_java(bootstrap: str, security: Security, topic: str, values: list[bytes]) -> list[bytes]:
    config = security.ca.parent / f"{topic}.properties"
    config.write_text("".join(f"{key}={escape(value)}\n" for key, value in security.java().items()))
    server = ["--bootstrap-server", bootstrap, "--topic", topic]
    lines = "\n".join(value.decode() for value in values) + "\n"
    producing = [*server, "--command-config", str(config), "--command-property", "max.block.ms=10000"]
    done = run_tool(console_producer(), producing, stdin=lines)
    if done.returncode or "AuthenticationException" in done.stdout + done.stderr:
        raise RefusedError(done.stdout + done.stderr)
    consuming = [*server, "--command-config", str(config), "--from-beginning", "--max-messages", str(len(values))]
    done = run_tool(CONSOLE_CONSUMER, consuming)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.encode() for line in done.stdout.splitlines()]


def escape(value: str) -> str:
    """Escape a value as a properties file does."""
    return value.replace("\\", "\\\\")


class LogCapture(logging.Handler):
    """Captures the log lines of a client library inside the block, so that none is printed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._logger = logging.getLogger(name)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def text(self) -> str:
        return "\n".join(self._lines)

    def __enter__(self) -> LogCapture:
        self._before = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._before


CLIENTS: dict[str, Callable[[str, Security, str, list[bytes]], list[bytes]]] = {
    "librdkafka": by_librdkafka,
    "kcat": by_kcat,
    "aiokafka": by_aiokafka,
    "kafka-python": by_kafka_python,
    "java": by_java,
}
QUICK = [name for name in CLIENTS if name != "java"]
"""Clients that need no JVM for each call."""
