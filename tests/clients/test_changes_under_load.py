"""Clients that continue while certificates are replaced and sessions expire: no request fails, and the new certificates
are used."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.apache_kafka import CONFIG_COMMAND, run_tool
from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates, Pair
from tests.support.prometheus import parse
from tidelog.commands.running.compaction import admin_address

LOCATION = "listener.name.ssl.ssl.keystore.location"
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";'
WAIT_S = 60
NODE = "1"


class Served:
    """A broker with listeners in clear, for TLS, and for SASL whose sessions last two seconds."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.ssl, self.sasl = f"localhost:{free_port()}", f"127.0.0.1:{free_port()}"
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://{self.ssl},SASL_PLAINTEXT://{self.sasl}",
            "node.id": NODE,
            "admin.authentication": "none",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl_plaintext.connections.max.reauth.ms": "4000",
            **self.certificates.server_texts(),
        })  # fmt: skip

    def set_store(self, pair: Pair) -> None:
        """Set the broker's store by IncrementalAlterConfigs. Raises KafkaException."""
        entry = ConfigEntry(LOCATION, str(pair.pem), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, NODE, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def shown(self) -> bytes:
        """Return the certificate that a new connection gets."""
        host, _, port = self.ssl.rpartition(":")
        context = ssl.create_default_context(cafile=str(self.certificates.authority.certificate))
        with (
            socket.create_connection((host, int(port)), timeout=WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            return encrypted.getpeercert(binary_form=True) or b""

    def metric(self, name: str, **labels: str) -> float:
        host, port = admin_address(self.broker.bootstrap)
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=WAIT_S) as page:
            return parse(page.read().decode()).value(name, **labels)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("changes"))
    with served.broker:
        yield served


class Load:
    """Producers, one after the other, until the test has what it waits for; every error is kept."""

    def __init__(self, conf: dict[str, str], records_per_client: int) -> None:
        self.errors: list[str] = []
        self.clients = 0
        self._conf = conf
        self._records = records_per_client
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            producer = Producer({**self._conf, "error_cb": self._fail, "linger.ms": 0})
            for _ in range(self._records):
                producer.produce("load", b"value", on_delivery=self._delivered)
                producer.flush(WAIT_S)
                if self._is_over.is_set():
                    break
            self.clients += 1

    def _fail(self, error: KafkaError) -> None:
        self.errors.append(str(error))

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._fail(error)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def test_certificates_are_swapped_under_load_without_an_error(served: Served) -> None:
    ca = served.certificates.authority
    conf = {"bootstrap.servers": served.ssl, "security.protocol": "ssl", "ssl.ca.location": str(ca.certificate)}
    with Load(conf, records_per_client=5) as load:
        for number in range(4):
            pair = ca.issue(f"swap{number}", "/CN=localhost/O=Tidelog", days=10 + number)
            served.set_store(pair)
            wait_until(lambda pair=pair: served.shown() == der(pair))  # type: ignore[misc]
            seen = load.clients
            wait_until(lambda seen=seen: load.clients >= seen + 2)  # type: ignore[misc]
    assert load.errors == []
    ends_in_s = served.metric("tidelog_tls_certificate_expiry_seconds", listener="SSL") - time.time()
    assert 12 < ends_in_s / 86_400 < 14


def test_a_store_that_cannot_be_used_is_refused_and_changes_nothing(served: Served, tmp_path: Path) -> None:
    before = served.shown()
    other = Certificates(tmp_path).authority.issue("other", "/CN=elsewhere")
    for pair, said in ((other, "subject"), (Pair(tmp_path, "missing"), "No such file")):
        with pytest.raises(KafkaException, match="Validation of dynamic config update of SSL stores failed") as refused:
            served.set_store(pair)
        assert said in str(refused.value)
        assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
    assert served.shown() == before


def test_clients_authenticate_again_under_load_without_an_error(served: Served) -> None:
    name = "kafka_server_socket_successful_reauthentication_total"
    conf = {"bootstrap.servers": served.sasl, "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN",
            "sasl.username": "ann", "sasl.password": "secret"}  # fmt: skip
    with Load(conf, records_per_client=1_000_000) as load:
        wait_until(lambda: load.clients == 0 and count(served, name) >= 3)
    assert load.errors == []
    assert count(served, "kafka_server_socket_expired_connections_killed_total") == 0


def count(served: Served, name: str) -> float:
    try:
        return served.metric(name)
    except KeyError:  # it has not happened yet
        return 0


@pytest.mark.java
def test_kafka_configs_sets_and_describes_a_store(served: Served) -> None:
    pair = served.certificates.authority.issue("by-tool", "/CN=localhost/O=Tidelog")
    broker = ["--bootstrap-server", served.broker.bootstrap, "--entity-type", "brokers"]
    added = f"{LOCATION}={pair.pem},listener.name.ssl.ssl.key.password=unused-word"
    done = run_tool(CONFIG_COMMAND, [*broker, "--entity-name", NODE, "--alter", "--add-config", added])
    assert "Completed updating config for broker 1." in done.stdout, done.stderr
    wait_until(lambda: served.shown() == der(pair))
    described = run_tool(CONFIG_COMMAND, [*broker, "--entity-name", NODE, "--describe"]).stdout
    assert re.search(rf"{re.escape(LOCATION)}={re.escape(str(pair.pem))} sensitive=false", described), described
    assert "listener.name.ssl.ssl.key.password=null sensitive=true" in described
    assert "unused-word" not in described
    refused = run_tool(CONFIG_COMMAND, [*broker, "--entity-default", "--alter", "--add-config", f"{LOCATION}=x"])
    assert "at default cluster level" in refused.stdout + refused.stderr
