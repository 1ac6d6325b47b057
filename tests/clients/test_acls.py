"""ACLs by Kafka's own tool, kafka-acls, and their effect on clients that produce and consume while one is deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import tidelog
from tests.support.apache_kafka import run_tool
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
ACLS = "org.apache.kafka.tools.AclCommand"


def kafka_acls(broker: tidelog.Broker, *arguments: str) -> list[str]:
    """Run kafka-acls; return the lines of its output without their indentation."""
    done = run_tool(ACLS, ["--bootstrap-server", broker.bootstrap, *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


@pytest.mark.java
@pytest.mark.slow
def test_kafka_acls_adds_lists_and_removes(tmp_path: Path) -> None:
    with tidelog.Broker(AUTHORIZER, data_dir=tmp_path) as broker:
        rights = ["--allow-principal", "User:ann", "--consumer", "--topic", "orders", "--group", "g"]
        kafka_acls(broker, "--add", *rights, "--resource-pattern-type", "prefixed")
        kafka_acls(broker, "--add", "--deny-principal", "User:bob", "--operation", "All", "--topic", "*")
        lines = kafka_acls(broker, "--list")
        assert "Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=*, patternType=LITERAL)`:" in lines
        assert "(principal=User:bob, host=*, operation=ALL, permissionType=DENY)" in lines
        assert "(principal=User:ann, host=*, operation=DESCRIBE, permissionType=ALLOW)" in lines
        kafka_acls(broker, "--remove", "--force", *rights, "--resource-pattern-type", "prefixed")
        left = kafka_acls(broker, "--list")
        assert [line for line in left if line.startswith("(")] == [
            "(principal=User:bob, host=*, operation=ALL, permissionType=DENY)"
        ]


USER = "User:ANONYMOUS"
ALLOW, LITERAL = AclPermissionType.ALLOW, ResourcePatternType.LITERAL
WAIT_S = 60.0
RECORDS = 200


def binding(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(kind, name, LITERAL, USER, "*", operation, ALLOW)


def filter_of(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )


TOPIC_RIGHTS = [
    binding(ResourceType.TOPIC, "orders", operation)
    for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
]
OTHER_RIGHTS = [
    binding(ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER),
    binding(ResourceType.GROUP, "g", AclOperation.READ),
]


class Writer(threading.Thread):
    """A producer that writes until the broker refuses it (``refused``), and counts the acknowledged records."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.acknowledged = 0
        self.refused = threading.Event()

    def run(self) -> None:
        while not self.refused.is_set():
            self._producer.produce("orders", b"value", on_delivery=self._take_report)
            self._producer.poll(0.001)
        self._producer.purge()
        self._producer.flush(WAIT_S)

    def _take_report(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.refused.set()


class Reader(threading.Thread):
    """A consumer that reads until the broker refuses it (``refused``), and counts its records."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        settings = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition("orders", 0, 0)])
        self.read = 0
        self.refused = threading.Event()

    def run(self) -> None:
        while not self.refused.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.read += 1
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self.refused.set()
        self._consumer.close()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; after WAIT_S the test fails with ``what``."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def end_offset(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    _, end = consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=WAIT_S)
    consumer.close()
    assert isinstance(end, int)
    return end


@pytest.mark.slow
def test_nothing_is_written_or_read_after_an_acl_is_deleted(tmp_path: Path) -> None:
    """The two clients run all the time; the response to DeleteAcls is the moment after which nothing may pass."""
    with tidelog.Broker(AUTHORIZER, data_dir=tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 1)])["orders"].result()
        for made in admin.create_acls([*TOPIC_RIGHTS, *OTHER_RIGHTS]).values():
            made.result()
    with tidelog.Broker({**AUTHORIZER, "super.users": "User:admin"}, data_dir=tmp_path) as broker, ExitStack() as ends:
        writer, reader = Writer(broker.bootstrap), Reader(broker.bootstrap)
        threads = (writer, reader)
        for thread in threads:
            thread.start()
            ends.callback(thread.refused.set)  # if the test fails, its clients end all the same
        wait_until(lambda: min(writer.acknowledged, reader.read) > RECORDS, "the clients write and read")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        deleted = admin.delete_acls([filter_of(acl) for acl in TOPIC_RIGHTS[:2]])  # not that to DESCRIBE
        assert [len(found.result()) for found in deleted.values()] == [1, 1]
        end = end_offset(broker.bootstrap)
        for thread in threads:
            assert thread.refused.wait(WAIT_S), f"{type(thread).__name__} is not refused"
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert end_offset(broker.bootstrap) == end
        assert reader.read <= end
        assert writer.acknowledged <= end
