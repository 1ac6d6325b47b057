"""The examples of docs/frameworks.md, run unchanged: records are written and read, and a restart continues.

Only the address is another one, and ports and paths of the machine. ``make frameworks`` runs those, too, that are too
much for every run, with the packages of an environment of their own (``TIDELOG_FRAMEWORKS`` is its Python).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import tidelog
from benchmarks.rivals.kafka_jars import BUILD, JAVA_INSTALL, Artifact, resolve
from benchmarks.rivals.process import BrokerProcess, free_port
from tests.support.broker import TidelogProcess
from tests.support.jvm import QUICK
from tests.support.kafka_jars import or_skip
from tests.support.power.waiting import wait_until
from tests.support.requirements import missing, require_tool
from tidelog.broker_process import clean_environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
ADDRESS = "127.0.0.1:9092"
OWN_PYTHON = os.environ.get("TIDELOG_FRAMEWORKS", "")
LIMIT_S = 120
needs_environment = pytest.mark.skipif(not OWN_PYTHON, reason="make frameworks")


def section(title: str) -> str:
    """Return the text below a heading of the page."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str, language: str) -> str:
    """Return the one code block of a section in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section(title), re.MULTILINE | re.DOTALL)
    return str(found)


def require_package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        missing(name, f"pip install {name}")


class Shop:
    """A broker with the topics of the page, a directory with the example, and what is sent and billed."""

    def __init__(self, broker: tidelog.Broker | BrokerProcess, directory: Path) -> None:
        self.bootstrap = broker.bootstrap
        self.directory = directory
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._reader = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.partition.eof": True}
        )
        for made in self._admin.create_topics([NewTopic(name, 1) for name in ("orders", "invoices")]).values():
            made.result()

    def write(self, text: str, name: str = "billing.py", **changes: str) -> None:
        """Write the example, with the broker's address."""
        for old, new in {ADDRESS: self.bootstrap, **changes}.items():
            assert old in text
            text = text.replace(old, new)
        (self.directory / name).write_text(text)

    def order(self, number: int) -> None:
        """Send an order."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce("orders", json.dumps({"id": number, "price": 5, "count": 2}))
        assert producer.flush(LIMIT_S) == 0

    def count(self) -> int:
        """Return the number of invoices."""
        return int(self._reader.get_watermark_offsets(TopicPartition("invoices", 0), LIMIT_S)[1])

    def invoices(self) -> list[bytes]:
        """Return the values of all invoices up to the end, those of open transactions not."""
        self._reader.assign([TopicPartition("invoices", 0, 0)])
        found: list[bytes] = []
        while (record := self._reader.poll(LIMIT_S)) is not None:
            error = record.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            if error is None:
                found.append(record.value() or b"")
        return found

    def billed(self) -> list[int]:
        """Return the orders that were billed, in their order."""
        return [json.loads(value)["order"] for value in self.invoices()]

    def committed(self, group: str = "billing", topic: str = "orders") -> int:
        """Return the offset that the group of an example has committed."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        (answer,) = self._admin.list_consumer_group_offsets([wanted]).values()
        (partition,) = answer.result().topic_partitions
        return int(partition.offset)

    @contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a service of the example; it stops by SIGTERM, in its own time."""
        with (self.directory / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                command, cwd=self.directory, env=clean_environment(), stdout=output, stderr=output
            )
            try:
                yield process
                process.terminate()
                process.wait(LIMIT_S)
            finally:
                process.kill()
                process.wait()

    def run(self, *command: str) -> None:
        """Run a command of the example to its end."""
        done = subprocess.run(
            command, cwd=self.directory, env=clean_environment(), capture_output=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with tidelog.Broker() as broker:
        shop = Shop(broker, tmp_path)
        yield shop
        shop.close()


def bill_two_orders(shop: Shop, *command: str) -> None:
    """Run the command for an order, stop it, and run it for another one."""
    for number in (1, 2):
        shop.order(number)
        with shop.running(*command):
            wait_until(lambda: len(shop.billed()) >= number)  # noqa: B023
        assert shop.committed() == number
    assert shop.billed() == [1, 2]


def test_faststream_continues_where_it_was(shop: Shop) -> None:
    require_package("faststream")
    shop.write(block("FastStream", "python"))
    bill_two_orders(shop, sys.executable, "billing.py")


def test_fastapi_with_aiokafka_continues_where_it_was(shop: Shop) -> None:
    require_package("fastapi")
    port = free_port()
    shop.write(block("FastAPI with aiokafka", "python"), **{"port=8000": f"port={port}"})
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/orders", b'{"id": 2, "price": 5, "count": 2}', {"Content-Type": "application/json"}
    )
    shop.order(1)
    with shop.running(sys.executable, "billing.py"):
        wait_until(lambda: shop.committed() == 1)
    with shop.running(sys.executable, "billing.py"):
        wait_until(lambda: is_taken(request))
        wait_until(lambda: shop.committed() == 2)
    assert shop.billed() == [1, 2]


def is_taken(request: urllib.request.Request) -> bool:
    """Send a request; returns whether the service listens by now."""
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert json.load(answer) == {"offset": 1}
            return True
    except urllib.error.URLError:
        return False


@needs_environment
def test_celery_does_each_task_once(shop: Shop) -> None:
    shop.write(block("Celery", "python"))
    invoices = shop.directory / "invoices.txt"
    invoices.touch()
    worker = re.search(r"`celery (-A billing worker [^`]+)`", section("Celery"))
    assert worker
    for number in (1, 2):
        send = f"from billing import bill; bill.delay({{'id': {number}}})"
        shop.run(OWN_PYTHON, "-c", send)
        with shop.running(OWN_PYTHON, "-m", "celery", *worker[1].split()):
            wait_until(lambda: shop.committed("celery-consumer-group", "celery") == number)  # noqa: B023
    assert invoices.read_text().split() == ["1", "2"]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Bytewax has no wheel for this Python")
def test_bytewax_continues_where_it_was(shop: Shop) -> None:
    require_package("bytewax")
    shop.write(block("Bytewax", "python"))
    commands = [line.replace("python", sys.executable).split() for line in block("Bytewax", "sh").splitlines()]
    for number in (1, 2):
        shop.order(number)
        for command in commands if number == 1 else commands[-1:]:
            shop.run(*command)
        assert shop.billed() == [1, 2][:number]


@needs_environment
def test_quix_streams_continues_where_it_was(shop: Shop) -> None:
    shop.write(block("Quix Streams", "python"))
    bill_two_orders(shop, OWN_PYTHON, "billing.py")


@needs_environment
def test_rsyslog_continues_where_it_was(shop: Shop) -> None:
    command = require_tool("rsyslogd", install="apt-get install --no-install-recommends rsyslog-kafka")
    lines = shop.directory / "orders.log"
    text = f'global(workDirectory="{shop.directory}")\n' + block("rsyslog", "text")
    shop.write(text, "rsyslog.conf", **{"/var/log/orders.log": str(lines)})
    for number in (1, 2):
        with lines.open("a") as log:
            log.write(f"order {number}\n")
        with shop.running(command, "-n", "-f", "rsyslog.conf", "-i", str(shop.directory / "pid")):
            wait_until(lambda: shop.count() >= number)  # noqa: B023
    assert [value.strip() for value in shop.invoices()] == [b"order 1", b"order 2"]


FLINK, FLINK_CONNECTOR = "2.0.0", "4.0.1-2.0"
SPRING_KAFKA = "3.3.10"


def flink_jars() -> str:
    """Return a class path with Flink, its connector, and a log on standard error."""
    names = ("flink-clients", "flink-streaming-java", "flink-connector-base")
    flink = [Artifact("org.apache.flink", name, FLINK) for name in names]
    connector = Artifact("org.apache.flink", "flink-connector-kafka", FLINK_CONNECTOR)
    return java_jars(f"flink-{FLINK}", [*flink, connector, Artifact("org.slf4j", "slf4j-simple", "1.7.36")])


def java_jars(name: str, artifacts: list[Artifact]) -> str:
    """Return a class path of artifacts and all they need."""
    return f"{or_skip(lambda: resolve(name, artifacts, BUILD / 'frameworks-java'))}/*"


def java_service(shop: Shop, title: str, jars: str) -> list[str]:
    """Compile the Java example of a section; the command that runs it."""
    compiler, java = (require_tool(name, JAVA_INSTALL) for name in ("javac", "java"))
    shop.write(block(title, "java"), "Billing.java")
    shop.run(compiler, "-nowarn", "-cp", jars, "Billing.java")
    return [java, *QUICK, "-Xmx512M", "-cp", f"{shop.directory}:{jars}", "Billing"]


@needs_environment
def test_spring_bills_each_order_once_when_it_is_killed(shop: Shop) -> None:
    jars = java_jars(
        f"spring-kafka-{SPRING_KAFKA}", [Artifact("org.springframework.kafka", "spring-kafka", SPRING_KAFKA)]
    )
    command = java_service(shop, "Spring for Apache Kafka", jars)
    bill_two_orders(shop, *command)
    for number in range(3, 60):
        shop.order(number)
    with shop.running(*command) as service:
        wait_until(lambda: len(shop.billed()) > 10)
        service.kill()
        service.wait()
    with shop.running(*command):
        wait_until(lambda: len(shop.billed()) >= 59)
    assert shop.billed() == list(range(1, 60))


class FlinkJob:
    """The job of the page: it is started, fails, and is killed."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.sent = 0
        self._currency = shop.directory / "currency.txt"
        self._command = java_service(shop, "Flink", flink_jars())

    def run(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Start the job, at its newest complete checkpoint if there is one."""
        self._currency.write_text("EUR")
        complete = sorted(
            self.shop.directory.glob("checkpoints/*/chk-*/_metadata"), key=lambda one: one.stat().st_mtime
        )
        return self.shop.running(*self._command, *(path.parent.as_uri() for path in complete[-1:]))

    def order(self, count: int) -> None:
        """Send orders."""
        for _ in range(count):
            self.sent += 1
            self.shop.order(self.sent)

    def fail(self, times: int) -> None:
        """Let the job fail some times, each time with the first part of a transaction written."""
        end = self.shop.count()
        self.order(2)
        wait_until(lambda: self.shop.count() > end)
        self._currency.unlink()
        failed = self._failures() + times
        self.order(2)
        wait_until(lambda: self._failures() >= failed)
        self._currency.write_text("EUR")

    def _failures(self) -> int:
        return (self.shop.directory / "output.txt").read_text().count("switched from RUNNING to FAILED")

    def wait_until_billed(self) -> None:
        """Wait for the invoices of all orders: each is there once, in order."""
        wait_until(lambda: len(self.shop.billed()) >= self.sent)
        assert self.shop.billed() == list(range(1, self.sent + 1))


@needs_environment
def test_flink_bills_each_order_once_whatever_fails(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path / "broker") as broker:
        shop = Shop(broker, tmp_path)
        job = FlinkJob(shop)
        for times in (1, 3):
            with job.run() as running:
                job.order(3)
                job.wait_until_billed()
                job.fail(times)
                job.wait_until_billed()
                end = shop.count()
                job.order(2)
                wait_until(lambda: shop.count() > end)  # noqa: B023
                running.kill()
                running.wait()
        with job.run():
            job.wait_until_billed()
            job.order(2)
            broker.kill()
            broker.start()
            job.wait_until_billed()
        shop.close()


def test_every_framework_of_the_page_has_its_test() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    text = Path(__file__).read_text()
    assert [title for title in titles if f'"{title}"' not in text] == []
