"""Clients with quotas: their rates, the throttle times in responses, and that no record is lost.

Windows are two seconds long here, so that one second's worth may come at once and the rest is spread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerProcess
from tests.clients.test_java_group_tools import run
from tests.support.admin import Admin
from tests.support.apache_kafka import PRODUCER_PERFORMANCE, ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.kafka_python import kafka
from tidelog.client import CLIENT_ID, Client
from tidelog.protocol.errors import ThrottlingQuotaExceededError
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

CONFIG_COMMAND = "kafka.admin.ConfigCommand"
WINDOWS = {
    f"{prefix}quota.window.{name}": value
    for prefix in ("", "controller.")
    for name, value in (("num", "2"), ("size.seconds", "1"))
}
RATE = 200_000
VALUE = bytes(10_000)
COUNT = 60
"""Three seconds' worth: one at once, two to wait for."""
MIN_S = 1.5
MAX_S = 30.0


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    kind: Any = ApacheKafka if request.config.getoption("--broker") == "kafka" else TidelogProcess
    with kind(tmp_path_factory.mktemp("quotas"), WINDOWS) as process:
        yield process


def set_quota(broker: BrokerProcess, client_id: str, key: str, value: float | None) -> None:
    op = OpData(key=key, value=value or 0.0, remove=value is None)
    entity = [EntityData(entity_type="client-id", entity_name=client_id)]
    with Client(broker.bootstrap) as client:
        request = AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=[op])])
        assert client.call(request, AlterClientQuotasResponse).entries[0].error_code == 0


class Throttles:
    """Throttle times that librdkafka reports of its broker, in milliseconds."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def __call__(self, event: Any) -> None:
        self.waits.append(1000 * event.throttle_time)


def produce(broker: BrokerProcess, topic: str, client_id: str, throttles: Throttles) -> float:
    """Produce the records, and return the seconds it took."""
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": client_id,
        "batch.size": len(VALUE) * 2,
        "throttle_cb": throttles,
    }
    producer = Producer(settings)
    began = time.monotonic()
    for _ in range(COUNT):
        producer.produce(topic, VALUE)
    assert producer.flush(60) == 0
    return time.monotonic() - began


def consume(broker: BrokerProcess, topic: str, client_id: str, throttles: Throttles) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": client_id,
            "group.id": f"of-{client_id}",
            "auto.offset.reset": "earliest",
            "throttle_cb": throttles,
        }
    )
    consumer.subscribe([topic])
    began = time.monotonic()
    seen = 0
    while seen < COUNT:
        message = consumer.poll(1.0)
        assert time.monotonic() - began < 60
        if message is not None and message.error() is None:
            seen += 1
    took = time.monotonic() - began
    consumer.close()
    return took


def test_librdkafka_is_told_to_wait_and_keeps_to_the_rate(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("rates")
    throttles = Throttles()
    set_quota(broker, "produces", "producer_byte_rate", RATE)
    assert MIN_S < produce(broker, "rates", "produces", throttles) < MAX_S
    assert max(throttles.waits) > 0
    throttles.waits.clear()
    set_quota(broker, "consumes", "consumer_byte_rate", RATE)
    assert MIN_S < consume(broker, "rates", "consumes", throttles) < MAX_S
    assert max(throttles.waits) > 0


def test_a_quota_holds_at_once_and_ends_at_once(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("changes")
    throttles = Throttles()
    produce(broker, "changes", "changes", throttles)
    assert throttles.waits == []
    set_quota(broker, "changes", "producer_byte_rate", RATE)
    assert produce(broker, "changes", "changes", throttles) > MIN_S
    assert max(throttles.waits) > 0
    set_quota(broker, "changes", "producer_byte_rate", None)
    throttles.waits.clear()
    produce(broker, "changes", "changes", throttles)
    assert throttles.waits == []


def test_a_quota_holds_after_a_restart(fresh_broker: BrokerProcess) -> None:
    """The window is Kafka's default here, ten seconds and the one that runs."""
    Admin(fresh_broker.bootstrap).create("again")
    set_quota(fresh_broker, "again", "producer_byte_rate", COUNT * len(VALUE) // 11)
    fresh_broker.restart()
    throttles = Throttles()
    produce(fresh_broker, "again", "again", throttles)
    assert max(throttles.waits) > 0


def test_kafka_python_reports_the_wait(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    Admin(broker.bootstrap).create("python")
    set_quota(broker, "python", "producer_byte_rate", RATE)
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, client_id="python", batch_size=len(VALUE) * 2)
    began = time.monotonic()
    for _ in range(COUNT):
        producer.send("python", VALUE)
    producer.flush(60)
    assert MIN_S < time.monotonic() - began < MAX_S
    producer.close()
    assert "ProduceResponse throttled by broker" in caplog.text


def test_an_old_client_that_creates_too_much_waits(broker: BrokerProcess) -> None:
    """Two partitions may be saved up, and one comes each second. librdkafka does not know the error code for it."""
    set_quota(broker, "creates", "controller_mutation_rate", 1)
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "creates"})
    began = time.monotonic()
    client.create_topics([NewTopic("first", 4, 1)])["first"].result()
    client.create_topics([NewTopic("second", 1, 1)])["second"].result()
    assert time.monotonic() - began > 1


def test_a_new_client_that_creates_too_much_is_refused(broker: BrokerProcess) -> None:
    set_quota(broker, CLIENT_ID, "controller_mutation_rate", 1)
    with Client(broker.bootstrap) as client:
        codes = [
            client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse)
            .topics[0]
            .error_code
            for topic in (
                CreatableTopic(name=name, num_partitions=4, replication_factor=1) for name in ("new-1", "new-2")
            )
        ]
    set_quota(broker, CLIENT_ID, "controller_mutation_rate", None)
    assert codes == [0, ThrottlingQuotaExceededError.code]


def test_an_address_that_opens_too_many_connections_is_held(broker: BrokerProcess) -> None:
    """One may be saved up here; the others are closed without an answer, but not at once."""
    with Client(broker.bootstrap) as client:
        quota = OpData(key="connection_creation_rate", value=1.0, remove=False)
        entry = EntryData(entity=[EntityData(entity_type="ip", entity_name="127.0.0.1")], ops=[quota])
        assert (
            client.call(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse).entries[0].error_code == 0
        )
        time.sleep(0.5)
        began = time.monotonic()
        opened = [socket.create_connection((broker.host, broker.port), timeout=30) for _ in range(5)]
        assert opened[-1].recv(1) == b""
        assert time.monotonic() - began > 0.3
        for connection in opened:
            connection.close()
        quota.remove = True
        assert (
            client.call(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse).entries[0].error_code == 0
        )


@pytest.mark.java
@pytest.mark.slow
def test_kafkas_own_tools_set_a_quota_and_report_the_throttling(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("perf")
    server = ("--bootstrap-server", broker.bootstrap)
    entity = ("--entity-type", "clients", "--entity-name", "perf")
    properties = (f"bootstrap.servers={broker.bootstrap}", "client.id=perf", "batch.size=20000")
    _, described, measured, _ = run(
        [
            (CONFIG_COMMAND, *server, "--alter", *entity, "--add-config", f"producer_byte_rate={RATE}"),
            (CONFIG_COMMAND, *server, "--describe", *entity),
            (
                PRODUCER_PERFORMANCE, "--topic", "perf", "--num-records", str(COUNT), "--record-size", str(len(VALUE)),
                "--throughput", "-1", "--print-metrics", "--producer-props", *properties,
            ),
            (CONFIG_COMMAND, *server, "--alter", *entity, "--delete-config", "producer_byte_rate"),
        ],
    )  # fmt: skip
    assert f"producer_byte_rate={RATE}" in described
    (waited,) = (
        line for line in measured.splitlines() if line.startswith("producer-metrics:produce-throttle-time-max")
    )
    assert float(waited.split(":")[-1]) > 0
