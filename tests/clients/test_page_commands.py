"""Examples of guides, run unchanged except for addresses and directories."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.rivals.process import free_port
from tests.support.broker import TidelogProcess
from tests.support.examples import Example, read_examples
from tests.support.jvm import java_program
from tests.support.kafka_scripts import write_scripts
from tests.support.page_shell import PageShell
from tests.support.requirements import require_tool

pytestmark = pytest.mark.java

WAIT_S = 60
DAY_MS = 86_400_000


def example(page: str, title: str) -> Example:
    """Return the block of a page below docs/ that begins with a text."""
    (found,) = (each for each in read_examples(f"docs/{page}") if each.title.startswith(title))
    return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    """A shell beside a broker of its own, whose console has a port of its own."""
    admin = f"127.0.0.1:{free_port()}"
    broker = TidelogProcess(tmp_path / "broker", {"admin.listener": admin})
    with broker:
        changes = {"localhost:9092": broker.bootstrap, "127.0.0.1:9092": broker.bootstrap, "127.0.0.1:9644": admin}
        shell = PageShell(tmp_path, changes)
        shell.environment["TIDELOG_BOOTSTRAP"] = broker.bootstrap
        yield shell


@pytest.fixture
def tools(shell: PageShell) -> PageShell:
    """The shell with Kafka's tools."""
    scripts = write_scripts(shell.directory / "scripts")
    shell.environment["PATH"] = f"{scripts}:{shell.environment['PATH']}"
    return shell


def produce(shell: PageShell, topic: str, records: list[tuple[str | None, str, int, str | None]]) -> None:
    """Write records: key, value, time and the header ``kind``."""
    producer = Producer({"bootstrap.servers": shell.place("localhost:9092")})
    for key, value, timestamp, kind in records:
        headers: list[tuple[str, str | bytes | None]] = [("kind", kind)] if kind else []
        producer.produce(topic, value, key, timestamp=timestamp, headers=headers)
    assert producer.flush(WAIT_S) == 0


def produce_orders(shell: PageShell) -> None:
    """Produce orders of today's half past nine, of now, and of the day that the page names."""
    shell.run(f"tidelog config set topic orders message.timestamp.after.max.ms={DAY_MS} retention.ms=-1")
    morning = int(datetime.now().replace(hour=9, minute=30, second=0).timestamp() * 1000)
    then = int(datetime.fromisoformat("2026-11-21T09:02+00:00").timestamp() * 1000)
    now = time.time_ns() // 1_000_000
    records = [("4711", "morning", morning, "sent"), ("4711", "now", now, "paid"), ("4712", "other", now, "sent")]
    produce(shell, "orders", [*records, ("a b", "spaced", 1_700_000_030_000, None), ("4711", "then", then, "paid")])


def test_the_index_is_switched_on_and_finds(tools: PageShell) -> None:
    tools.run("tidelog topic create orders --partitions 3")
    produce_orders(tools)
    switch, find = example("find.md", "kafka-configs.sh").commands
    tools.run(switch)
    assert words_in(tools.run(find)) == between_nine_and_ten()


def between_nine_and_ten() -> set[str]:
    """Return the orders of that hour: the one of now too while the test runs in it."""
    return {"morning", "now"} if datetime.now().hour == 9 else {"morning"}


def words_in(printed: str) -> set[str]:
    """Return which of the orders' values were printed."""
    return {word for word in ("morning", "now", "then", "other", "spaced") if word in printed.split()}


def test_records_are_found_as_the_page_says(shell: PageShell) -> None:
    run_python(shell, example("find.md", "from confluent_kafka.admin"))
    produce_orders(shell)
    expected = [{"morning", "now", "then"}, between_nine_and_ten(), {"now"}, {"then"}]
    commands = example("find.md", "tidelog find orders --key 4711").commands
    for command, values in zip(commands, expected, strict=True):
        assert words_in(shell.run(command).replace('"', " ")) == values, command
    (example_of_python,) = (
        each for each in read_examples("docs/find.md") if "from tidelog import Tidelog" in each.text
    )
    assert "b'morning'" in run_python(shell, example_of_python)
    request, _, shown = example("find.md", "GET /topics").text.partition("\n")
    address = shell.place("127.0.0.1:9644")
    with urllib.request.urlopen(f"http://{address}{request.removeprefix('GET ')}", timeout=WAIT_S) as answer:
        found = json.load(answer)
    documented = json.loads(shown)
    assert found.keys() == documented.keys()
    assert found["records"][0].keys() == documented["records"][0].keys()
    assert {record["value"] for record in found["records"]} == between_nine_and_ten()


def run_python(shell: PageShell, block: Example) -> str:
    """Run a block of Python in a process of its own; return what it printed."""
    (shell.directory / "example.py").write_text(shell.place(block.text))
    return shell.run("python example.py")


def test_any_client_reads_virtual_topics(tools: PageShell) -> None:
    require_tool("kcat", install="apt-get install kcat")
    run_python(tools, example("find.md", "from confluent_kafka.admin"))
    produce_orders(tools)
    console, kcat, *names = example("find.md", "kafka-console-consumer.sh").commands
    for command in (console, kcat):
        assert tools.first_line(command).strip() in ("morning", "now", "then")
    names += example("find.md", "orders...key.4711").commands
    older = {"a%20b": {"spaced"}, "a_x20b": {"spaced"}, "?from=1700000000000&to": {"spaced"}}
    for line in names:
        name = line.split()[0]
        values = next((found for part, found in older.items() if part in name), {"morning", "now", "then"})
        found = read_some(tools, name)
        assert found, name
        assert found <= values, name


def read_some(shell: PageShell, topic: str) -> set[str]:
    """Read a virtual topic's three partitions up to their ends; return the values."""
    settings = {"bootstrap.servers": shell.place("localhost:9092"), "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    values, ends = set(), 0
    while ends < 3:
        record = consumer.poll(WAIT_S)
        assert record is not None, topic
        if record.error():
            ends += 1
        else:
            values.add((record.value() or b"").decode())
    consumer.close()
    return values


def test_a_topic_is_compacted(tools: PageShell) -> None:
    create, run, status = example("compaction.md", "kafka-topics.sh").commands
    tools.run(create)
    produce(tools, "prices", [("apple", str(number), 0, None) for number in range(5)])
    tools.run(run)
    assert "prices" in tools.run(status)
    assert tools.run("tidelog consume prices --format value").split() == ["4"]


def test_a_share_group_is_read_and_looked_after(tools: PageShell) -> None:
    tools.run("tidelog topic create letters")
    produce(tools, "letters", [(None, "dear Ann", 0, None)])
    settings, consume = example("share-groups.md", "kafka-configs.sh").commands
    tools.run(settings)
    assert tools.first_line(consume).strip() == "dear Ann"
    for command in example("share-groups.md", "kafka-share-groups.sh").commands:
        printed = tools.run(until_empty(tools, command))
        assert "mail" in printed or "letters" in printed, command
    assert "mail" not in tools.run("kafka-share-groups.sh --bootstrap-server localhost:9092 --list")


def until_empty(shell: PageShell, command: str) -> str:
    """Return the command once the group has no members: a consumer that was stopped leaves it first."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        (group,) = json.loads(shell.run("tidelog group describe mail --json"))
        if not group.get("members"):
            break
    return command


JAVA = """\
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;

public class Mail {
    static boolean send(ConsumerRecord<String, String> record) {
        System.out.println(record.value());
        return true;
    }

    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        for (String name : List.of("key.deserializer", "value.deserializer"))
            properties.put(name, "org.apache.kafka.common.serialization.StringDeserializer");
"""


def test_java_acknowledges_each_record(shell: PageShell) -> None:
    block = example("share-groups.md", 'properties.put("group.id", "mail")')
    source = shell.directory / "Mail.java"
    source.write_text(f"{JAVA}{block.text}    }}\n}}\n")
    shell.run("tidelog topic create letters")
    shell.run("tidelog config set group mail share.auto.offset.reset=earliest")
    produce(shell, "letters", [(None, "dear Ann", 0, None)])
    command = " ".join([*map(repr, java_program(source)), "localhost:9092"])
    assert shell.first_line(command).strip() == "dear Ann"


def test_a_broker_says_where_its_console_is_and_that_it_is_ready(tmp_path: Path) -> None:
    """The first blocks of console.md and operations.md: the broker is started by the page's own line."""
    admin = f"127.0.0.1:{free_port()}"
    shell = PageShell(tmp_path, {"127.0.0.1:9644": admin, "/var/lib/tidelog": str(tmp_path / "operated")})
    command, ready, console = example("console.md", "tidelog serve").commands
    with shell.running(f"{command} --port 0 --override admin.listener=127.0.0.1:0") as process:
        assert process.stdout is not None
        for documented in (ready, console):
            assert re.fullmatch(re.sub(r"\d+$", r"\\d+", documented), process.stdout.readline().strip())
    serve, curl = example("operations.md", "tidelog serve").commands
    with shell.running(f"{serve} --port 0") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("tidelog ready on ")
        assert shell.run(curl).strip() == "ok"


def test_a_streams_group_is_configured(tools: PageShell) -> None:
    (command,) = example("streams-groups.md", "kafka-configs.sh").commands
    tools.run(command)
    assert '"streams.num.standby.replicas"' in tools.run("tidelog config get group words --json")
