"""``tidelog produce``, ``consume`` and ``group`` against Tidelog and Apache Kafka, beside Kafka's own console tools."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.apache_kafka import CONSOLE_CONSUMER, ApacheKafka, run_tool
from tests.support.broker import TidelogProcess
from tests.support.shell import Shell
from tidelog.broker_process import clean_environment
from tidelog.cli import main

TIDELOG = (sys.executable, "-I", "-m", "tidelog")
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TIMEOUT_S = 60


@pytest.fixture(scope="module", params=["tidelog", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of either kind, shared by the tests of this module."""
    directory, settings = tmp_path_factory.mktemp(request.param), {"group.initial.rebalance.delay.ms": "0"}
    node: BrokerProcess
    if request.param == "kafka":
        node = ApacheKafka(directory, settings, in_shared_jvm=True)
    else:
        node = TidelogProcess(directory, settings)
    with node:
        yield node


@pytest.fixture
def shell(served: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(served.bootstrap, capsys)


def create(shell: Shell, topic: str, partitions: int = 1) -> None:
    """Create a topic that the broker knows then."""
    shell.text("topic", "create", topic, "-p", str(partitions))
    shell.until(True, "topic", "list", of=lambda found: topic in {one["name"] for one in found})


def produce(shell: Shell, topic: str, content: bytes | str, tmp_path: Path, *words: str) -> dict[str, Any]:
    """Write records of a file, and return what the command tells."""
    path = tmp_path / "records"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    report: dict[str, Any] = shell.json("produce", topic, str(path), *words)
    return report


def consume(shell: Shell, topic: str, *words: str) -> list[dict[str, Any]]:
    """Read records of a topic, as JSON."""
    return [json.loads(line) for line in shell.text("consume", topic, *words, "--json").splitlines()]


def place_of(record: dict[str, Any]) -> tuple[int, int]:
    return record["partition"], record["offset"]


def values(records: list[dict[str, Any]]) -> list[str]:
    return [record["value"] for record in records]


def test_produced_lines_are_consumed_unchanged(shell: Shell, tmp_path: Path) -> None:
    create(shell, "lines")
    report = produce(shell, "lines", "first\nsecond\r\n\nlast", tmp_path, "-k", "k", "-H", "source=web", "-H", "n=1")
    assert report["records"] == 4
    assert report["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 3, "records": 4}]
    found = consume(shell, "lines")
    assert values(found) == ["first", "second", "", "last"]
    assert {record["key"] for record in found} == {"k"}
    assert found[0]["headers"] == [{"name": "source", "value": "web"}, {"name": "n", "value": "1"}]
    assert shell.text("consume", "lines", "--format", "value") == "first\nsecond\n\nlast\n"
    assert shell.text("consume", "lines", "-n", "1").split("\t")[0::2] == ["lines-0@0", "k"]
    assert shell.text("consume", "lines", "-n", "1", "--format", "hex").split("\t")[2:] == ["6b", "6669727374\n"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_reads_the_output_of_consume(shell: Shell, tmp_path: Path, codec: str) -> None:
    create(shell, f"from-{codec}", 2)
    create(shell, f"to-{codec}", 2)
    rows = [
        {"key": "a", "value": "ä", "timestamp": 1_700_000_000_000, "headers": [{"name": "h", "value_base64": "/w=="}]},
        {"key_base64": "//4=", "value_base64": "gA==", "partition": 1},
        {"key": None, "value": None, "partition": 0},
        {"key": "object", "value": {"a": [1, None]}, "partition": 0},
    ]
    lines = "\n".join(map(json.dumps, rows))
    assert produce(shell, f"from-{codec}", lines, tmp_path, "--format", "json", "-z", codec)["records"] == 4
    first = consume(shell, f"from-{codec}")
    by_key = {record.get("key", record.get("key_base64")): record for record in first}
    assert by_key["a"]["headers"] == [{"name": "h", "value_base64": "/w=="}]
    assert (by_key["a"]["value"], by_key["a"]["timestamp"]) == ("ä", 1_700_000_000_000)
    assert by_key["//4="]["value_base64"] == "gA=="
    assert json.loads(by_key["object"]["value"]) == {"a": [1, None]}
    assert by_key[None]["value"] is None
    produce(shell, f"to-{codec}", "\n".join(map(json.dumps, first)), tmp_path, "--format", "json")
    second = [{**record, "topic": f"from-{codec}"} for record in consume(shell, f"to-{codec}")]
    assert sorted(second, key=place_of) == sorted(first, key=place_of)


def test_keys_get_the_partitions_of_kafkas_own_producer(shell: Shell, tmp_path: Path) -> None:
    create(shell, "keyed", 7)
    lines = "\n".join(f"key-{number}:{number}" for number in range(40))
    produce(shell, "keyed", lines, tmp_path, "-K", ":")
    placed = {record["key"]: record["partition"] for record in consume(shell, "keyed")}
    assert len(set(placed.values())) > 3
    from confluent_kafka import Producer

    create(shell, "keyed-too", 7)
    producer = Producer({"bootstrap.servers": shell.bootstrap, "partitioner": "murmur2_random"})
    for key in placed:
        producer.produce("keyed-too", b"v", key)
    assert producer.flush(30) == 0
    assert {record["key"]: record["partition"] for record in consume(shell, "keyed-too")} == placed


def test_many_records_arrive_once_and_in_order(shell: Shell, tmp_path: Path) -> None:
    create(shell, "many", 3)
    lines = "\n".join(f"{number % 10}:{'x' * 90}{number}" for number in range(20_000))
    report = produce(shell, "many", lines, tmp_path, "-K", ":", "-z", "lz4")
    assert report["records"] == 20_000
    found = consume(shell, "many")
    assert len(found) == 20_000
    for key in map(str, range(10)):
        mine = [int(record["value"][90:]) for record in found if record["key"] == key]
        assert mine == list(range(int(key), 20_000, 10))


def test_reading_begins_and_ends_at_the_given_positions(shell: Shell, tmp_path: Path) -> None:
    create(shell, "ranges", 2)
    base = 1_700_000_000_000
    rows = [{"value": str(number), "partition": number % 2, "timestamp": base + number} for number in range(10)]
    produce(shell, "ranges", "\n".join(map(json.dumps, rows)), tmp_path, "--format", "json")
    zero = ("ranges", "-p", "0")
    assert values(consume(shell, *zero)) == ["0", "2", "4", "6", "8"]
    assert values(consume(shell, *zero, "-o", "3")) == ["6", "8"]
    assert values(consume(shell, *zero, "-o", "-1")) == ["8"]
    for start, end in (("start", "end"), ("beginning", "latest"), ("earliest", "latest")):
        assert values(consume(shell, *zero, "-o", start)) == ["0", "2", "4", "6", "8"]
        assert values(consume(shell, *zero, "-o", end)) == []
    assert values(consume(shell, *zero, "-o", "99")) == []
    assert values(consume(shell, *zero, "--from", str(base + 3), "--to", str(base + 6))) == ["4", "6"]
    assert sorted(values(consume(shell, "ranges", "--from", str(base + 7)))) == ["7", "8", "9"]
    assert sorted(values(consume(shell, "ranges", "--from-beginning"))) == [str(number) for number in range(10)]
    assert len(consume(shell, "ranges", "-n", "4")) == 4


def test_records_of_aborted_transactions_are_left_out(shell: Shell) -> None:
    from confluent_kafka import Producer

    create(shell, "committed")
    producer = Producer({"bootstrap.servers": shell.bootstrap, "transactional.id": "aborts"})
    producer.init_transactions(30)
    for number, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        producer.produce("committed", str(number).encode())
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    assert values(consume(shell, "committed")) == ["0", "1", "2", "3"]
    assert values(consume(shell, "committed", "--isolation", "read_committed")) == ["0", "2"]


def test_megabytes_of_aborted_records_do_not_end_the_read(shell: Shell) -> None:
    """A round takes a megabyte of a partition: several hold nothing but what was aborted."""
    from confluent_kafka import Producer

    create(shell, "mostly-aborted")
    producer = Producer({"bootstrap.servers": shell.bootstrap, "transactional.id": "mostly-aborts", "linger.ms": 0})
    producer.init_transactions(30)
    for _ in range(2):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("mostly-aborted", bytes(900_000))
            producer.flush(30)
        producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce("mostly-aborted", b"kept")
    producer.commit_transaction(30)
    committed = ("--isolation", "read_committed")
    assert values(consume(shell, "mostly-aborted", *committed)) == ["kept"]
    assert values(consume(shell, "mostly-aborted", *committed, "-g", "patient")) == ["kept"]


def test_a_group_continues_where_it_was(shell: Shell, tmp_path: Path) -> None:
    create(shell, "grouped", 3)
    produce(shell, "grouped", "\n".join(f"{number}:{number}" for number in range(30)), tmp_path, "-K", ":")
    first = values(consume(shell, "grouped", "-g", "readers", "-n", "12"))
    rest = values(consume(shell, "grouped", "-g", "readers"))
    assert len(first) == 12
    assert sorted(map(int, first + rest)) == list(range(30))
    (group,) = shell.json("group", "describe", "readers")
    assert (group["state"], group["type"], group["lag"], group["members"]) == ("Empty", "classic", 0, [])
    assert sum(one["committed"] for one in group["partitions"]) == 30
    assert consume(shell, "grouped", "-g", "readers") == []
    listed = {one["group"]: (one["type"], one["state"]) for one in shell.json("group", "list", "--type", "classic")}
    assert listed["readers"] == ("classic", "Empty")


def test_two_members_share_the_partitions(shell: Shell, tmp_path: Path) -> None:
    create(shell, "shared", 4)
    command = [*TIDELOG, "consume", "shared", "-g", "pair", "--follow", "--format", "value", "-b", shell.bootstrap]
    members = [subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment()) for _ in range(2)]
    try:
        shell.until(True, "group", "list", of=lambda found: "pair" in {one["group"] for one in found})
        shell.until(
            [2, 2], "group", "describe", "pair",
            of=lambda found: sorted(len(member["partitions"]) for member in found[0]["members"]),
        )  # fmt: skip
        rows = [{"value": str(number), "partition": number % 4} for number in range(40)]
        produce(shell, "shared", "\n".join(map(json.dumps, rows)), tmp_path, "--format", "json")
        read = [lines_of(member, 20) for member in members]
        assert [len(lines) for lines in read] == [20, 20]
        assert sorted(int(line) for lines in read for line in lines) == list(range(40))
        assert "group" in shell.failure("group", "reset", "pair", "--topic", "shared", "--to-earliest")
        assert "group pair: " in shell.failure("group", "delete", "pair")
        members[0].send_signal(2)
        assert members[0].wait(TIMEOUT_S) == 130
        shell.until(
            [4], "group", "describe", "pair",
            of=lambda found: [len(member["partitions"]) for member in found[0]["members"]],
        )  # fmt: skip
        members[1].terminate()
        assert members[1].wait(TIMEOUT_S) == 143
        shell.until([], "group", "describe", "pair", of=lambda found: found[0]["members"])
        (left,) = shell.json("group", "describe", "pair")
        assert left["lag"] == 0
    finally:
        for member in members:
            member.kill()
            member.wait(TIMEOUT_S)
            assert member.stdout is not None
            member.stdout.close()


def lines_of(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    """Read so many lines of a process's output, or those that come in time."""
    assert process.stdout is not None
    descriptor, data = process.stdout.fileno(), b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while data.count(b"\n") < count and poll.poll(TIMEOUT_S * 1000):
        chunk = os.read(descriptor, 65536)
        if not chunk:
            break
        data += chunk
    return data.splitlines()


def test_a_groups_offsets_are_moved(shell: Shell, tmp_path: Path) -> None:
    create(shell, "moved", 2)
    base = 1_700_000_000_000
    rows = [{"value": str(number), "partition": number % 2, "timestamp": base + number} for number in range(20)]
    produce(shell, "moved", "\n".join(map(json.dumps, rows)), tmp_path, "--format", "json")
    consume(shell, "moved", "-g", "mover")

    def reset(*words: str) -> list[int]:
        return [one["offset"] for one in shell.json("group", "reset", "mover", *words)["partitions"]]

    assert reset("--all-topics", "--to-current") == [10, 10]
    assert reset("--topic", "moved:1", "--shift-by", "-3") == [7]
    assert reset("--all-topics", "--to-current") == [10, 7]
    assert reset("--topic", "moved", "--to-datetime", str(base + 5)) == [3, 2]
    assert reset("--topic", "moved", "--to-offset", "99", "--dry-run") == [10, 10]
    assert reset("--all-topics", "--to-current") == [3, 2]
    assert reset("--all-topics", "--to-latest") == [10, 10]
    assert reset("--all-topics", "--to-earliest") == [0, 0]
    assert shell.json("group", "describe", "mover")[0]["lag"] == 20
    assert shell.text("group", "delete-offsets", "mover", "--topic", "moved:0") == "deleted the offset of moved-0\n"
    assert [one["partition"] for one in shell.json("group", "describe", "mover")[0]["partitions"]] == [1]
    assert shell.text("group", "delete", "mover") == "deleted group mover\n"
    assert "there is no such group" in shell.failure("group", "describe", "mover")


def test_a_missing_topic_is_created_for_a_given_partition_too(shell: Shell, tmp_path: Path) -> None:
    produce(shell, "fresh", "paid\n", tmp_path, "-p", "0")
    assert values(consume(shell, "fresh")) == ["paid"]


def test_headers_of_one_name_are_all_sent(shell: Shell, tmp_path: Path) -> None:
    create(shell, "headers")
    produce(shell, "headers", "paid\n", tmp_path, "-H", "via=web", "-H", "via=proxy")
    (record,) = consume(shell, "headers")
    assert record["headers"] == [{"name": "via", "value": "web"}, {"name": "via", "value": "proxy"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["consume", "not-there"], "topic not-there"),
        (["consume", "bad", "-p", "7"], "there is no 7"),
        (["produce", "bad", "/no/such/file"], "/no/such/file"),
        (["produce", "bad", "/dev/null", "-p", "9"], ""),
        (["group", "describe", "no-such-group"], "no-such-group: there is no such group"),
        (["group", "delete", "no-such-group"], "no-such-group"),
        (["group", "reset", "none", "--topic", "bad", "--shift-by", "1"], "no offset is committed for bad-0"),
        (["group", "reset", "none", "--topic", "bad:7", "--to-latest"], "there is no 7"),
    ],
)
def test_a_missing_topic_partition_or_group_is_one_line(shell: Shell, words: list[str], message: str) -> None:
    shell.text("topic", "create", "bad", "-p", "1", "--if-not-exists")
    shell.until(True, "topic", "list", of=lambda found: "bad" in {one["name"] for one in found})
    if message:
        assert message in shell.failure(*words)
    else:
        assert shell.text(*words) == "", "no record, no complaint"


@pytest.mark.parametrize(
    ("line", "form", "message"),
    [
        ('{"valu": 1}', "json", "line 2: unknown key 'valu'"),
        ("[1]", "json", "line 2: expected an object"),
        ("{", "json", "line 2: no JSON"),
        ('{"value_base64": "%"}', "json", "line 2: value_base64"),
        ('{"partition": -1}', "json", "line 2: partition: -1"),
        ('{"headers": [1]}', "json", "line 2: headers"),
        ("no delimiter", "lines", "line 2: expected KEY:VALUE, found 'no delimiter'"),
    ],
)
def test_a_line_that_is_no_record_is_named(
    shell: Shell, tmp_path: Path, line: str, form: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_once = main(["topic", "create", "malformed", "--if-not-exists", "-b", shell.bootstrap])
    assert create_once == 0
    path = tmp_path / "rows"
    good = '{"value": "good"}' if form == "json" else "k:good"
    path.write_text(f"{good}\n{line}\n")
    delimiter = [] if form == "json" else ["-K", ":"]
    capsys.readouterr()
    assert message in shell.failure("produce", "malformed", str(path), "--format", form, *delimiter)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["consume", "t", "-o", "soon"], "--offset 'soon'"),
        (["consume", "t", "-o", "1", "--from-beginning"], "expected one of"),
        (["consume", "t", "-p", "0", "-g", "g"], "--partition"),
        (["consume", "t", "--from", "1h", "--to", "2h"], "--from is after --to"),
        (["consume", "t", "-n", "0"], "-n"),
        (["find", "t", "--from", "1h", "--to", "2h"], "--from is after --to"),
        (["produce", "t", "-H", "x"], "--header: expected KEY=VALUE"),
        (["produce", "t", "-K", ":", "-k", "k"], "--key-delimiter"),
        (["group", "reset", "g", "--all-topics"], "expected one of --to-earliest"),
        (["group", "reset", "g", "--to-latest"], "expected one of --topic and --all-topics"),
        (["group", "reset", "g", "--to-latest", "--to-offset", "3", "--all-topics"], "expected one of --to-earliest"),
        (["topic", "alter", "t"], "expected --config"),
        (["topic", "add-partitions", "t"], "expected one of --num and --partitions"),
        (["topic", "create", "t", "-c", "x"], "--config: expected KEY=VALUE"),
        (["config", "set", "table", "t", "a=b"], "'table'"),
        (["config", "set", "topic", "t", "a"], "expected KEY=VALUE"),
    ],
)
def test_wrong_usage_is_one_line_and_asks_no_broker(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in Shell("127.0.0.1:1", capsys).failure(*words, code=2)


def end_offset(described: list[dict[str, Any]]) -> int:
    end: int = described[0]["partitions"][0]["end_offset"]
    return end


def test_a_typed_line_is_produced_at_once(shell: Shell) -> None:
    create(shell, "typed")
    command = [*TIDELOG, "produce", "typed", "-b", shell.bootstrap]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=clean_environment()
    ) as process:
        assert process.stdin is not None
        for number in range(3):
            process.stdin.write(f"{number}\n".encode())
            process.stdin.flush()
            shell.until(
                number + 1, "topic", "describe", "typed", of=lambda found: found[0]["partitions"][0]["end_offset"]
            )
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.java
@pytest.mark.slow
def test_kafkas_console_tools_write_and_read_the_same(shell: Shell, tmp_path: Path) -> None:
    create(shell, "console")
    produce(shell, "console", "a:1\nb:2", tmp_path, "-K", ":", "-H", "h=v")
    server = ["--bootstrap-server", shell.bootstrap]
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "print.headers=true", "--from-beginning"]
    words = [*server, "--topic", "console", *shown, "--max-messages", "2", "--group", "java"]
    assert run_tool(CONSOLE_CONSUMER, words).stdout.splitlines() == ["h:v\ta\t1", "h:v\tb\t2"]
    (group,) = shell.json("group", "describe", "java")
    output = run_tool(GROUP_COMMAND, [*server, "--describe", "--group", "java"]).stdout
    (row,) = [line.split() for line in output.splitlines() if line.startswith("java")]
    (mine,) = group["partitions"]
    assert row[1:6] == [mine["topic"], *(str(mine[key]) for key in ("partition", "committed", "end", "lag"))]
