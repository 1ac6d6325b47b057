"""Examples of docs/pipeline-jobs.md, kafka-directories.md and schema-registry.md, run unchanged except for directories.

Jobs run with ``--master none``; what needs Spark itself is run by tests/spark.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.rivals.process import free_port
from tests.support.broker import TidelogProcess
from tests.support.examples import Example, read_examples
from tests.support.page_shell import PageShell
from tests.support.requirements import require_packages

require_packages("pyiceberg", "deltalake", "pandas")

WAIT_S = 60
SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def example(page: str, title: str) -> Example:
    """Return the block of a page below docs/ that has a line which begins with a text."""
    (found,) = (each for each in read_examples(f"docs/{page}") if f"\n{title}" in f"\n{each.text}")
    return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageShell]:
    """A shell in a directory that holds ``data`` with topics, beside their broker and a registry."""
    directory = tmp_path_factory.mktemp("jobs")
    registry, lake = f"http://127.0.0.1:{free_port()}", directory / "lake"
    lake.mkdir()
    changes = {
        "https://schemas.example.org": registry,
        "http://127.0.0.1:8081": registry,
        "sqlite:////lake": f"sqlite:///{lake}",
        "--warehouse /lake": f"--warehouse {lake}",
        "/var/lib/node_exporter": str(directory),
        "/var/lib/kafka/data": "data",
        "tidelog pipeline export": "tidelog pipeline export --master none",
    }
    with TidelogProcess(directory / "broker", {"schema.registry.listener": registry.removeprefix("http://")}) as broker:
        (directory / "data").symlink_to(broker.data_directory)
        shell = PageShell(directory, changes)
        shell.environment |= {
            "TIDELOG_BOOTSTRAP": broker.bootstrap,
            "TIDELOG_REGISTRY": registry,
            "PYICEBERG_CATALOG__PROD__URI": f"sqlite:///{directory}/prod.db",
            "PYICEBERG_CATALOG__PROD__WAREHOUSE": str(directory / "prod"),
        }
        (directory / "prod").mkdir()
        write_topics(shell, broker.bootstrap)
        yield shell


def write_topics(shell: PageShell, bootstrap: str) -> None:
    """Write users and clicks in JSON, orders with a schema."""
    shell.run("tidelog topic create orders users clicks")
    (shell.directory / "order.avsc").write_text(json.dumps(SCHEMA))
    shell.run("echo '{\"id\": 4711}' | tidelog produce orders --value-format avro --value-schema order.avsc")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce("users", b'{"age": %d}' % number, b"ann")
        producer.produce("clicks", b'{"page": "p%d"}' % number)
    assert producer.flush(WAIT_S) == 0


def rows(shell: PageShell, table: str) -> int:
    """Count the rows of a folder of Parquet."""
    return int(pyarrow.parquet.read_table(shell.directory / table / "data").num_rows)


def orders(shell: PageShell) -> int:
    """Count the records of the topic: another test of this module writes one, too."""
    consumer = Consumer({"bootstrap.servers": shell.environment["TIDELOG_BOOTSTRAP"], "group.id": "count"})
    first, end = consumer.get_watermark_offsets(TopicPartition("orders", 0), WAIT_S)
    consumer.close()
    assert end > first == 0
    return int(end)


def python(text: str, shell: PageShell, **names: Any) -> dict[str, Any]:
    """Run a block of Python here; its names."""
    found = dict(names)
    exec(compile(shell.place(text), "page", "exec"), found)
    return found


def test_a_topic_becomes_parquet(shell: PageShell) -> None:
    _, export = example("pipeline-jobs.md", "tidelog pipeline export --path data --topic orders lake/orders").commands
    shell.run(export)
    assert rows(shell, "lake/orders") == orders(shell)


def test_tables_are_in_catalogs_and_read_there(shell: PageShell) -> None:
    """The line with https://catalog.example.org is another one: a REST catalog has tests of its own."""
    sql, rest, configured = example("pipeline-jobs.md", "tidelog pipeline export --path data --catalog sqlite").commands
    assert "https://catalog.example.org" in rest
    for command in (sql, configured):
        shell.run(command)
    imported, read = example("pipeline-jobs.md", "from pyiceberg.catalog").commands
    names = python(f"{imported}\ntable = {read}", shell)
    assert {"users", "clicks", "orders"} <= set(names["table"].column("topic").to_pylist())


def test_the_latest_value_of_each_key(shell: PageShell) -> None:
    for command in example("pipeline-jobs.md", "tidelog pipeline export --path data --topic users").commands:
        assert "1" in shell.run(command)


def test_values_become_columns(shell: PageShell) -> None:
    registered, plain = example("pipeline-jobs.md", "tidelog pipeline export --path data --topic clicks").commands
    shell.run(registered)
    shell.run(plain)
    table = pyarrow.parquet.read_table(shell.directory / "lake/clicks/data")
    assert table.column("page").to_pylist() == [f"p{number}" for number in range(10)]


def test_a_table_keeps_up_until_it_is_stopped(shell: PageShell) -> None:
    (command,) = example(
        "pipeline-jobs.md", "tidelog pipeline export --path data --topic orders --catalog prod lake.orders --follow"
    ).commands
    with shell.running(command.replace("lake.orders", "lake.followed")) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert "tidelog_export_rows_total" in (shell.directory / "orders.prom").read_text()


def test_the_function_says_whether_the_day_is_complete(
    shell: PageShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shell.directory)
    python(example("pipeline-jobs.md", "result = export(").text, shell, spark=None)
    assert "yesterday is complete" in capsys.readouterr().out


def test_directories_of_kafka_are_scanned_and_exported(shell: PageShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.directory)
    python(example("kafka-directories.md", "import tidelog").text, shell)
    _, export = example("kafka-directories.md", "tidelog pipeline export").commands
    shell.run(export.replace("lake/orders", "lake/of-kafka"))
    assert rows(shell, "lake/of-kafka") == orders(shell)


def test_the_registry_is_asked_by_curl_and_by_the_commands(shell: PageShell) -> None:
    latest, setting = example("schema-registry.md", "curl http://127.0.0.1:8081/subjects").commands
    assert json.loads(json.loads(shell.run(latest))["schema"])["name"] == "Order"
    assert json.loads(shell.run(setting)) == {"compatibility": "FULL"}
    export, schema, produce, consume = example("schema-registry.md", "export TIDELOG_REGISTRY").commands
    shell.run(f"{export}; {schema}; {produce}")
    with shell.running(f"env {export.removeprefix('export ')} {consume}") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["value"] == {"id": 4711}
