"""Finding records through a broker process: command, Python, HTTP, and virtual topics read by unmodified clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.apache_kafka import CONSOLE_CONSUMER, run_tool
from tests.support.kafka_jars import KAFKA_4
from tests.support.kafka_python import kafka
from tests.support.raw_requests import ask as raw_ask
from tests.support.toolchains import answer_records, ask, go_program
from tidelog import Broker, Tidelog
from tidelog.client import ClientError
from tidelog.commands.running.compaction import admin_address
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.record.batches import iter_batches

ROOT = Path(__file__).resolve().parents[2]
COUNT = 3000
QUIET = {"log_level": 0}
INDEXED = {"index.keys": "true", "index.tag.header": "kind"}


def value(number: int) -> bytes:
    return b"value-%d" % number


def create(bootstrap: str, topic: str, partitions: int, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(topic, partitions, config=config)]).values():
        future.result()


def produce(bootstrap: str, topic: str, numbers: range, codec: str = "none") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": codec, **QUIET})
    for number in numbers:
        kind = b"paid" if number % 3 else b"open"
        producer.produce(topic, key=b"%d" % (number % 50), value=value(number), headers=[("kind", kind)])
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        create(started.bootstrap, "orders", 3, INDEXED)
        produce(started.bootstrap, "orders", range(COUNT))
        yield started


def of_key(key: int, count: int = COUNT) -> set[bytes]:
    return {value(number) for number in range(count) if number % 50 == key}


OPEN = {value(number) for number in range(COUNT) if number % 3 == 0}
VIRTUAL = {"orders?key=7": of_key(7), "orders?tag=open": OPEN, "orders?key=7&tag=open": of_key(7) & OPEN}
VIRTUAL |= {"orders...key.7": of_key(7), "orders?key=missing": set()}


def test_python_finds_by_key_and_tag(broker: Broker) -> None:
    client = Tidelog(broker.bootstrap)
    assert {record.value for record in client.find("orders", key="7")} == of_key(7)
    found = list(client.find("orders", tag="open"))
    assert {record.value for record in found} == OPEN
    assert [record.timestamp for record in found] == sorted((r.timestamp for r in found), reverse=True)
    assert len(list(client.find("orders", key=b"7", max_records=5))) == 5
    with pytest.raises(ClientError, match="no topic"):
        next(client.find("nothing", key="7"))


def test_the_command_prints_what_it_finds(broker: Broker) -> None:
    words = [sys.executable, "-m", "tidelog.cli", "find", "orders", "--key", "7", "--all", "--json"]
    done = subprocess.run(
        [*words, "--bootstrap", broker.bootstrap], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == len(of_key(7))


@pytest.mark.parametrize(("zone", "hours"), [("EAST-14", 14), ("WEST11", -11)])
def test_times_without_a_zone_are_in_the_zone_of_the_command(broker: Broker, zone: str, hours: int) -> None:
    """One of the two at least is another zone than the broker's, on every machine that runs this."""
    now = datetime.now(timezone(timedelta(hours=hours)))
    for shift, count in ((timedelta(hours=-1), len(of_key(7))), (timedelta(hours=1), 0)):
        moment = (now + shift).replace(tzinfo=None).isoformat(timespec="seconds")
        words = ["find", "orders", "--key", "7", "--all", "--from", moment, "--bootstrap", broker.bootstrap]
        printed = subprocess.run(
            [sys.executable, "-m", "tidelog.cli", *words],
            capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "TZ": zone},
        ).stdout  # fmt: skip
        assert len(printed.splitlines()) == count
    with pytest.raises(ClientError, match="'yesterday' is not a time"):
        Tidelog(broker.bootstrap).find("orders", key="7", begin="yesterday")


def get(broker: Broker, topic: str, **parameters: Any) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(*admin_address(broker.bootstrap))
    connection.request("GET", f"/topics/{topic}/records?{urlencode(parameters)}")
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def test_http_pages_continue_where_the_last_one_stopped(broker: Broker) -> None:
    values: list[str] = []
    following: str | None = ""
    while following is not None:
        status, page = get(broker, "orders", key="7", max=13, next=following, wait="true")
        assert status == 200
        values += [record["value"] for record in page["records"]]
        following = page["next"]
    assert len(values) == len(of_key(7))
    assert {text.encode() for text in values} == of_key(7)


def test_http_bounds_formats_and_lag(broker: Broker) -> None:
    create(broker.bootstrap, "edges", 1, INDEXED)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET})
    base = 1_700_000_000_000
    for shift, key, text in (
        (0, b"k", b"first"),
        (999, b"k", b"\xff\xfe"),
        (1000, None, b"no key"),
        (1001, b"k", None),
    ):
        producer.produce("edges", key=key, value=text, timestamp=base + shift)
    assert producer.flush(30) == 0

    def found(**asked: Any) -> list[Any]:
        status, answer = get(broker, "edges", wait="true", **asked)
        assert (status, answer["lag"]) == (200, 0)
        return [record["value"] for record in answer["records"]]

    assert found(key="k") == [None, {"base64": "//4="}, "first"]
    assert found(key="k", format="base64") == [None, "//4=", "Zmlyc3Q="]
    assert found(key64="aw==", to=base + 999) == [{"base64": "//4="}, "first"]
    assert found(key="k", to=base + 998) == ["first"]
    assert found(key="k", **{"from": base + 1001}) == [None]
    assert found(key="k", **{"from": base + 1002}) == []
    assert found(**{"from": base + 1, "to": base + 1000}) == ["no key", {"base64": "//4="}]
    connection = HTTPConnection(*admin_address(broker.bootstrap))
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    assert 'tidelog_index_partition_lag_records{partition="0",topic="edges"} 0' in lines
    assert any(line.startswith("tidelog_index_lag_records ") for line in lines)


def test_http_reports_errors_of_the_request(broker: Broker) -> None:
    create(broker.bootstrap, "plain", 1, {})
    assert get(broker, "nothing", key="7")[0] == 404
    assert get(broker, "plain", key="7")[0] == 409
    assert get(broker, "orders", key="7", **{"from": "yesterday"})[0] == 400
    assert get(broker, "orders", colour="red")[0] == 400


@pytest.mark.parametrize("name", VIRTUAL)
def test_librdkafka_reads_a_virtual_topic_in_a_group(broker: Broker, name: str) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": f"rd-{name}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False, **QUIET})
    consumer.subscribe([name])
    values: list[bytes | None] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + 30
    while len(ended) < 3 and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            assert message.topic() == name
            values.append(message.value())
    assert len(ended) == 3, "the position must reach the end over the gap"
    assert len(values) == len(VIRTUAL[name])
    assert set(values) == VIRTUAL[name]
    if values:
        assert any(partition.offset != OFFSET_INVALID for partition in commit(consumer, name))
    consumer.close()


def commit(consumer: Consumer, name: str) -> list[TopicPartition]:
    """Commit the position and ask for what is committed; an error may hide in each partition of either answer."""
    answered = consumer.commit(asynchronous=False) or []
    committed = consumer.committed([TopicPartition(name, index) for index in range(3)])
    assert [partition.error for partition in answered + committed if partition.error] == []
    return committed


def test_kafka_python_reads_the_plain_spelling(broker: Broker) -> None:
    consumer = kafka.KafkaConsumer(
        "orders...key.7",
        bootstrap_servers=broker.bootstrap,
        group_id="kafka-python",
        auto_offset_reset="earliest",
    )
    partitions = [kafka.TopicPartition("orders...key.7", index) for index in range(3)]
    ends = consumer.end_offsets(partitions)
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while consumer.assignment() != set(partitions) or {each: consumer.position(each) for each in ends} != ends:
        assert time.monotonic() < deadline, "the position must reach the end over the gap"
        values += [message.value for batch in consumer.poll(100).values() for message in batch]
    consumer.close()
    assert len(values) == len(of_key(7))
    assert set(values) == of_key(7)


@pytest.mark.java
def test_java_reads_a_virtual_topic(broker: Broker) -> None:
    words = ["--bootstrap-server", broker.bootstrap, "--topic", "orders?key=7", "--from-beginning"]
    count = ("--max-messages", str(len(of_key(7))))
    done = run_tool(CONSOLE_CONSUMER, [*words, *count, "--group", "java", "--timeout-ms", "60000"], version=KAFKA_4)
    printed = [word for word in done.stdout.encode().split() if word.startswith(b"value-")]
    assert sorted(printed) == sorted(of_key(7)), done.stderr


def test_franz_go_reads_a_virtual_topic(broker: Broker) -> None:
    create(broker.bootstrap, "single", 1, INDEXED)
    produce(broker.bootstrap, "single", range(500))
    wanted = of_key(7, 500)
    question = {"bootstrap": broker.bootstrap, "topic": "single?key=7", "mode": "consume", "partitions": 1}
    answer = ask(go_program("franz"), {**question, "count": len(wanted)})
    assert {record.seen.value for record in answer_records(answer)} == wanted


def test_franz_go_reads_a_virtual_topic_in_a_group(broker: Broker) -> None:
    """Two members share the partitions and commit under the virtual topic's name."""
    create(broker.bootstrap, "shared", 2, INDEXED)
    produce(broker.bootstrap, "shared", range(500))
    name, wanted = "shared?key=7", of_key(7, 500)
    for round_number in (1, 2):  # such members learn of each other by a heartbeat every few seconds
        question = {"bootstrap": broker.bootstrap, "topic": name, "mode": "group", "group": "franz", "partitions": 2}
        answer = ask(go_program("franz"), {**question, "count": len(wanted)})
        assert sorted(partition for owned in answer["owned"] for partition in owned) == [0, 1]
        found = [record.seen.value or b"" for record in answer_records(answer)]
        assert sorted(found) == sorted(wanted), f"round {round_number} begins where the first committed"
        produce(broker.bootstrap, "shared", range(500))


@pytest.mark.parametrize("name", ["orders?key=7", "orders?tag=open"])
def test_a_group_of_the_new_protocol_reads_a_virtual_topic(broker: Broker, name: str) -> None:
    """KIP-848: the broker assigns by the virtual topic's own id."""
    settings = {
        "bootstrap.servers": broker.bootstrap, "group.id": f"new-{name}", "group.protocol": "consumer",
        "auto.offset.reset": "earliest", "enable.partition.eof": True, "enable.auto.commit": False,
    }  # fmt: skip
    values, committed = read_to_the_ends(Consumer({**settings, **QUIET}), name)
    assert len(values) == len(VIRTUAL[name])
    assert set(values) == VIRTUAL[name]
    assert any(partition.offset != OFFSET_INVALID for partition in committed)
    again, _ = read_to_the_ends(Consumer({**settings, **QUIET}), name)
    assert again == []


def read_to_the_ends(consumer: Consumer, name: str) -> tuple[list[bytes | None], list[TopicPartition]]:
    """Return the values of all three partitions, and what is committed then; close the consumer."""
    consumer.subscribe([name])
    values: list[bytes | None] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + 30
    while len(ended) < 3 and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error():
            ended.add(message.partition())
        elif message is not None:
            values.append(message.value())
    assert len(ended) == 3, "the position must reach the end over the gap"
    committed = commit(consumer, name) if values else []
    consumer.close()
    return values, committed


@pytest.mark.parametrize("version", range(4))
def test_fetches_of_clients_from_before_0_11_get_message_sets_of_a_virtual_topic(broker: Broker, version: int) -> None:
    """They know no empty batches that would carry them over a gap: they ask again, and the broker reads on."""
    name, port = "orders?key=7", int(broker.bootstrap.rpartition(":")[2])
    found: list[bytes] = []
    for partition in range(3):
        position, empty = 0, 0
        while empty < 3:
            records = old_fetch(port, name, partition, position, version)
            messages = [record for entry in iter_batches(records) for record in entry.records()]
            assert all(entry.magic == (0 if version < 2 else 1) for entry in iter_batches(records))
            found += [bytes(record.value or b"") for record in messages if record.offset >= position]
            position = max((record.offset + 1 for record in messages), default=position)
            empty = 0 if messages else empty + 1
    assert sorted(found) == sorted(of_key(7))


def old_fetch(port: int, topic: str, partition: int, offset: int, version: int) -> bytes:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=100_000)
    request = FetchRequest(
        max_wait_ms=400, min_bytes=1, max_bytes=1_000_000, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )
    answer = FetchResponse.decode(raw_ask(port, 1, version, request.encode(version)), version)
    (data,) = answer.responses[0].partitions
    assert data.error_code == 0
    return bytes(data.records or b"")  # type: ignore[arg-type]


def test_a_virtual_topic_is_read_only(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET})
    errors: list[Any] = []
    producer.produce("orders?key=7", value=b"no", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error.name() for error in errors] == ["TOPIC_EXCEPTION"]


def test_isolation_is_the_same_question_in_all_four_ways(broker: Broker) -> None:
    """Read uncommitted unless asked: one transaction aborted, one committed, one still open."""
    create(broker.bootstrap, "paid", 1, INDEXED)
    producers = []
    for ending in ("abort", "commit", "open"):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"find-{ending}", **QUIET})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("paid", key=b"k", value=ending.encode(), headers=[("kind", b"x")], partition=0)
        assert producer.flush(30) == 0
        if ending == "abort":
            producer.abort_transaction(30)
        elif ending == "commit":
            producer.commit_transaction(30)
        producers.append(producer)
    everything = {b"abort", b"commit", b"open"}
    for isolation, wanted in (("read_uncommitted", everything), ("read_committed", {b"commit"})):
        for question in ({"key": "k"}, {"tag": "x"}, {"begin": "1h"}):
            found = Tidelog(broker.bootstrap).find("paid", isolation=isolation, **question)  # type: ignore[arg-type]
            assert {record.value for record in found} == wanted
        _, answer = get(broker, "paid", key="k", isolation=isolation, wait="true")
        assert {record["value"].encode() for record in answer["records"]} == wanted
        words = ["find", "paid", "--key", "k", "--isolation", isolation, "--bootstrap", broker.bootstrap]
        printed = subprocess.run(
            [sys.executable, "-m", "tidelog.cli", *words], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
        assert {line.rpartition("\t")[2].encode() for line in printed.splitlines()} == wanted
        for name in ("paid?key=k", "paid?tag=x"):
            assert set(read_virtual(broker, name, isolation)) == wanted
    producers[2].abort_transaction(30)
    assert get(broker, "paid", key="k", isolation="read_sometimes")[0] == 400


def read_virtual(broker: Broker, name: str, isolation: str) -> list[bytes | None]:
    """Read the only partition of a virtual topic, to its end as that isolation level sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": "isolation", "isolation.level": isolation,
            "enable.partition.eof": True, "enable.auto.commit": False, **QUIET,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(name, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error():
            consumer.close()
            return values
        if message is not None:
            values.append(message.value())
    raise TimeoutError(f"{name} does not end; so far {values}")


def test_a_malformed_virtual_topic_is_refused(broker: Broker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "malformed", **QUIET})
    metadata = consumer.list_topics("orders?colour=red", timeout=60)
    assert metadata.topics["orders?colour=red"].error is not None
    with pytest.raises(KafkaException):
        consumer.get_watermark_offsets(TopicPartition("orders?colour=red", 0), timeout=5)
    consumer.close()


def test_records_that_come_later_arrive_at_a_waiting_consumer(broker: Broker) -> None:
    create(broker.bootstrap, "later", 1, INDEXED)
    produce(broker.bootstrap, "later", range(100), "zstd")
    name = "later?key=7"
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "later", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, **QUIET})
    consumer.subscribe([name])
    values = [message.value() for message in consumer.consume(2, 60)]
    produce(broker.bootstrap, "later", range(100, 200), "lz4")
    values += [message.value() for message in consumer.consume(2, 60)]
    consumer.close()
    assert values == [value(number) for number in (7, 57, 107, 157)]


def test_an_index_can_be_switched_on_for_a_topic_that_is_there(broker: Broker) -> None:
    create(broker.bootstrap, "existing", 1, {})
    produce(broker.bootstrap, "existing", range(500))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    entry = ConfigEntry("index.keys", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "existing", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    found = {record.value for record in Tidelog(broker.bootstrap).find("existing", key="7")}
    assert found == of_key(7, 500)


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_everything_acknowledged_is_found_after_kill_9(tmp_path: Path, delay_s: float) -> None:
    with Broker(data_dir=tmp_path) as broker:
        create(broker.bootstrap, "orders", 2, INDEXED)
        for start in range(0, 5000, 500):
            produce(broker.bootstrap, "orders", range(start, start + 500))
        time.sleep(delay_s)
        broker.kill()
        broker.start()
        client = Tidelog(broker.bootstrap)
        assert {record.value for record in client.find("orders", key="7")} == of_key(7, 5000)
        assert len(list(client.find("orders", tag="paid"))) == len([n for n in range(5000) if n % 3])
