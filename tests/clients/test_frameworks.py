"""The examples of docs/frameworks.md as they stand there: records go there and back, and a restart goes on.

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
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import tidelog
from benchmarks.rivals.process import free_port
from tests.support.power.waiting import wait_until
from tests.support.requirements import missing, require_tool
from tidelog.broker_process import clean_environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
ADDRESS = "127.0.0.1:9092"
OWN_PYTHON = os.environ.get("TIDELOG_FRAMEWORKS", "")
LIMIT_S = 120
needs_environment = pytest.mark.skipif(not OWN_PYTHON, reason="make frameworks")


def section(title: str) -> str:
    """The text below a heading of the page."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str, language: str) -> str:
    """The one code block of a section in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section(title), re.MULTILINE | re.DOTALL)
    return str(found)


def require_package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        missing(name, f"pip install {name}")


class Shop:
    """A broker with the topics of the page, a directory with the example, and what is sent and billed."""

    def __init__(self, broker: tidelog.Broker, directory: Path) -> None:
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
    def running(self, *command: str) -> Iterator[None]:
        """Run a service of the example; it stops by SIGTERM, in its own time."""
        with (self.directory / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                command, cwd=self.directory, env=clean_environment(), stdout=output, stderr=output
            )
            try:
                yield
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


def bill_two_orders(shop: Shop, python: str) -> None:
    """Bill an order, stop, and bill another one."""
    for number in (1, 2):
        shop.order(number)
        with shop.running(python, "billing.py"):
            wait_until(lambda: shop.count() >= number)  # noqa: B023
        assert shop.committed() == number
    assert shop.billed() == [1, 2]


def test_faststream_goes_on_where_it_was(shop: Shop) -> None:
    require_package("faststream")
    shop.write(block("FastStream", "python"))
    bill_two_orders(shop, sys.executable)


def test_fastapi_with_aiokafka_goes_on_where_it_was(shop: Shop) -> None:
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
def test_bytewax_goes_on_where_it_was(shop: Shop) -> None:
    require_package("bytewax")
    shop.write(block("Bytewax", "python"))
    commands = [line.replace("python", sys.executable).split() for line in block("Bytewax", "sh").splitlines()]
    for number in (1, 2):
        shop.order(number)
        for command in commands if number == 1 else commands[-1:]:
            shop.run(*command)
        assert shop.billed() == [1, 2][:number]


@needs_environment
def test_quix_streams_goes_on_where_it_was(shop: Shop) -> None:
    shop.write(block("Quix Streams", "python"))
    bill_two_orders(shop, OWN_PYTHON)


@needs_environment
def test_rsyslog_goes_on_where_it_was(shop: Shop) -> None:
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


def test_every_framework_of_the_page_has_its_test() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    text = Path(__file__).read_text()
    assert [title for title in titles if f'"{title}"' not in text] == []
