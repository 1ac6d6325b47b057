"""Partition directories in both directions: Tidelog serves those of Apache Kafka, and Apache Kafka those of Tidelog.

Kafka 4.3.1 runs once (KRaft): it writes the samples, leaves the files of a kill, gets directories written by Tidelog,
starts again, serves both and stops cleanly. Kafka 3.9 runs once beside a ZooKeeper, where topics may have message
formats 0 and 1. Each leaves two data directories, as killed and as stopped, which the tests only read.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka, dump_log_segments, run_tool
from tests.support.broker import TidelogProcess
from tests.support.logs import read_bytes
from tests.support.samples import GROUP, OPEN_TRANSACTION, Picture, Samples, picture, wait_until_cleaned
from tests.support.sparse_copy import copy_tree
from tests.support.zookeeper_kafka import ZooKeeperKafka
from tidelog.log.check import check_directory
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    read_offset_checkpoint,
    read_partition_metadata,
    write_offset_checkpoint,
    write_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition as Place
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.protocol.record.batches import iter_batches

pytestmark = pytest.mark.java
FILE_SYSTEM = OsFileSystem()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "moving-from-kafka.md"
PAGE_SOURCE, PAGE_TARGET, PAGE_PROPERTIES = "/var/lib/kafka/data", "/var/lib/tidelog", "server.properties"
OFFSETS_PARTITIONS, TRANSACTION_PARTITIONS = 7, 5
"""Not the defaults: the source's own counts must be kept, or groups and transactions look in the wrong partition."""
KAFKA_SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "transaction.state.log.num.partitions": str(TRANSACTION_PARTITIONS),
}


@dataclass(frozen=True, slots=True)
class Source:
    """A Kafka's data directory as it was left, and what that Kafka had served of it."""

    directory: Path
    served: Picture
    samples: Samples
    has_metadata: bool


@dataclass(frozen=True, slots=True)
class Written:
    """Records that Tidelog wrote, and those that Kafka served."""

    directory: Path
    served_here: Picture
    served_by_kafka: Picture
    refused_while_running: str


# ---- the brokers' runs


def adopt(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``tidelog adopt`` as a user does."""
    return run_tidelog(["adopt", *map(str, arguments)])


def run_tidelog(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "tidelog.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def tidelog_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Picture, Samples]:
    """A data directory written by a Tidelog process, stopped cleanly."""
    directory = tmp_path_factory.mktemp("written-by-tidelog")
    settings = {"log.cleaner.backoff.ms": "100", "log.flush.start.offset.checkpoint.interval.ms": "300"}
    with TidelogProcess(directory, settings) as broker:
        samples = Samples(broker.bootstrap, "tidelog.")
        samples.write(old_formats=True)
        wait_until_cleaned(broker.data_directory, samples)
        served = picture(broker.bootstrap, samples.topics)
    samples.close()
    return broker.data_directory, served, samples


@pytest.fixture(scope="module")
def kafka_4(
    tmp_path_factory: pytest.TempPathFactory, tidelog_files: tuple[Path, Picture, Samples]
) -> tuple[dict[str, Source], Written]:
    directory = tmp_path_factory.mktemp("kafka-4")
    kafka = ApacheKafka(directory, KAFKA_SETTINGS, in_shared_jvm=True)
    ours, served_here, our_samples = tidelog_files
    try:
        kafka.start()
        samples = Samples(kafka.bootstrap, "kafka.", segment_key="internal.segment.bytes")
        samples.write()
        for topic, count in our_samples.topics.items():
            policy = our_samples.configs[topic].get("cleanup.policy", "delete")
            Admin(kafka.bootstrap).create(topic, count, {"cleanup.policy": policy, "retention.ms": "-1"})
        wait_until_cleaned(kafka.data_directory, samples)
        served = picture(kafka.bootstrap, samples.topics)
        refused = adopt(kafka.data_directory, "--data-dir", directory / "unused")
        assert not (directory / "unused").exists()
        kafka.leave_as_killed()
        samples.close()
        copy_tree(kafka.data_directory, directory / "killed")
        put_into_kafka(ours, kafka.data_directory, our_samples.topics)
        kafka.start()
        served_by_kafka = picture(kafka.bootstrap, our_samples.topics)
        assert picture(kafka.bootstrap, samples.topics) == served, "Kafka itself serves the same after kill -9"
        kafka.terminate()
    finally:
        kafka.discard()
    sources = {
        "killed": Source(directory / "killed", served, samples, has_metadata=True),
        "stopped": Source(kafka.data_directory, served, samples, has_metadata=True),
    }
    return sources, Written(ours, served_here, served_by_kafka, refused.stderr)


def put_into_kafka(ours: Path, data: Path, topics: Mapping[str, int]) -> None:
    """Replace Kafka's empty partition directories by Tidelog's, with the topic ids that Kafka chose."""
    starts = read_offset_checkpoint(FILE_SYSTEM, str(data / LOG_START_OFFSET_FILE))
    our_starts = read_offset_checkpoint(FILE_SYSTEM, str(ours / LOG_START_OFFSET_FILE))
    for place in (Place(topic, index) for topic, count in topics.items() for index in range(count)):
        topic_id = read_partition_metadata(FILE_SYSTEM, str(data / str(place)))
        assert topic_id is not None
        shutil.rmtree(data / str(place))
        copy_tree(ours / str(place), data / str(place))
        write_partition_metadata(FILE_SYSTEM, str(data / str(place)), topic_id)
        if place in our_starts:
            starts[place] = our_starts[place]
    write_offset_checkpoint(FILE_SYSTEM, str(data / LOG_START_OFFSET_FILE), starts)


@pytest.fixture(scope="module")
def kafka_3(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    directory = tmp_path_factory.mktemp("kafka-3")
    kafka = ZooKeeperKafka(directory, KAFKA_SETTINGS, in_shared_jvm=True)
    try:
        kafka.start()
        samples = Samples(kafka.bootstrap, "kafka.")
        samples.write(old_formats=True)
        wait_until_cleaned(kafka.data_directory, samples)
        served = picture(kafka.bootstrap, samples.topics)
        kafka.leave_as_killed()
        samples.close()
        copy_tree(kafka.data_directory, directory / "killed")
        kafka.start()
        kafka.terminate()
    finally:
        kafka.close()
    return {
        "killed": Source(directory / "killed", served, samples, has_metadata=False),
        "stopped": Source(kafka.data_directory, served, samples, has_metadata=False),
    }


@pytest.fixture(params=["4-killed", "4-stopped", "3-killed", "3-stopped"])
def source(request: pytest.FixtureRequest) -> Source:
    """Each Kafka's directory, after kill -9 and after a clean stop."""
    major, _, state = request.param.partition("-")
    sources = request.getfixturevalue("kafka_4")[0] if major == "4" else request.getfixturevalue("kafka_3")
    found: Source = sources[state]
    return found


# ---- written by Kafka


def test_the_samples_have_all_kinds_of_batches(source: Source) -> None:
    """Old formats, all codecs, several segments, aborted and open transactions are really there."""
    seen = set()
    for path in source.directory.glob("kafka.*/*.log"):
        seen |= {(batch.magic, int(batch.compression_type)) for batch in iter_batches(path.read_bytes())}
    for magic in {2} if source.has_metadata else {0, 1, 2}:
        assert {codec for found, codec in seen if found == magic} == set(range(5 if magic == 2 else 4))
    for partition in range(5):
        assert len(list((source.directory / f"kafka.codecs-{partition}").glob("*.log"))) > 1
    place = ("kafka.transactions", 0)
    assert 0 < len(source.served.committed[place]) < len(source.served.uncommitted[place])
    assert len(source.served.uncommitted["kafka.compacted", 0]) < source.served.ends["kafka.compacted", 0]


def test_loader_opens_partition_directories(source: Source, tmp_path: Path) -> None:
    """Every partition through the loader itself, clean or recovering, record for record."""
    copy_tree(source.directory, tmp_path / "data")
    clean = (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    points = read_offset_checkpoint(FILE_SYSTEM, str(tmp_path / "data" / RECOVERY_POINT_FILE))
    starts = read_offset_checkpoint(FILE_SYSTEM, str(tmp_path / "data" / LOG_START_OFFSET_FILE))
    for (topic, index), expected in source.served.uncommitted.items():
        place = Place(topic, index)
        directory = str(tmp_path / "data" / str(place))
        log = load_log(
            LoadRequest(
                place,
                directory,
                LogConfig({"cleanup.policy": "compact"} if "compacted" in topic else {}),
                LogEnvironment(FILE_SYSTEM, SystemTime()),
                DirectoryState(str(tmp_path / "data")),
                log_start_offset=starts.get(place, 0),
                recovery_point=points.get(place, 0),
                clean=clean,
            )
        )
        assert log.log_end_offset == source.served.ends[topic, index]
        assert log.log_start_offset == source.served.starts[topic, index]
        found = {}
        offset = log.log_start_offset
        while data := read_bytes(log, offset):
            for batch in iter_batches(data):
                if not batch.is_control:
                    found.update({r.offset: (r.key, r.value) for r in batch.records() if r.offset >= offset})
            offset = batch.last_offset + 1
        log.close()
        assert found == {offset: (record.key, record.value) for offset, record in expected.items()}
        assert check_directory(FILE_SYSTEM, directory) == []


def test_adopted_directories_are_served(source: Source, tmp_path: Path) -> None:
    """One command; then a real broker serves the same records, offsets, groups and transactions."""
    before = snapshot(source.directory)
    arguments: list[str | Path] = [source.directory, "--data-dir", tmp_path / "data"]
    if not source.has_metadata:
        arguments += ["--topic-configs", write_topic_configs(tmp_path, source.samples)]
    done = adopt(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert snapshot(source.directory) == before, "the source is only read"
    again = adopt(*arguments)
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True), again.stdout + again.stderr
    with TidelogProcess(tmp_path, {"log.cleaner.enable": "false"}) as broker:
        assert_served(broker.bootstrap, source)
        assert_offsets_and_transactions(broker.bootstrap, source)
    assert run_tidelog(["check", str(tmp_path / "data")]).returncode == 0


def snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    """Note size and time of every file: what must not change."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def write_topic_configs(directory: Path, samples: Samples) -> Path:
    """Return the output of ``kafka-configs --describe --entity-type topics``."""
    lines = []
    for topic, configs in samples.configs.items():
        lines.append(f"Dynamic configs for topic {topic} are:")
        for key, text in configs.items():
            lines.append(f"  {key}={text} sensitive=false synonyms={{DYNAMIC_TOPIC_CONFIG:{key}={text}}}")
    path = directory / "topics.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def assert_served(bootstrap: str, source: Source) -> None:
    served = picture(bootstrap, source.samples.topics)
    assert served.starts == source.served.starts
    assert served.ends == source.served.ends
    assert served.uncommitted == source.served.uncommitted
    assert served.committed == source.served.committed
    topics = Admin(bootstrap).topics()
    assert topics["__consumer_offsets"] == OFFSETS_PARTITIONS
    assert topics["__transaction_state"] == TRANSACTION_PARTITIONS
    configs = Admin(bootstrap).configs(source.samples.name("codecs"))
    assert (configs["retention.ms"], configs["index.interval.bytes"]) == ("-1", "1024")
    assert Admin(bootstrap).configs(source.samples.name("compacted"))["cleanup.policy"] == "compact"


def assert_offsets_and_transactions(bootstrap: str, source: Source) -> None:
    """Check that the group goes on where it was, and that transactions work: the open one is ended by its owner."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    committed: list[Any] = source.samples.committed_offsets()
    found: list[Any] = consumer.committed([TopicPartition(p.topic, p.partition) for p in committed], timeout=30)
    consumer.close()
    assert [(p.offset, p.metadata) for p in found] == [(p.offset, p.metadata) for p in committed]
    topic = source.samples.name("transactions")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": OPEN_TRANSACTION, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"after the move")
    producer.commit_transaction(30)
    records = picture(bootstrap, {topic: 1}).committed[topic, 0]
    assert records[max(records)].value == b"after the move"
    last_stable_offset = max(source.served.committed[topic, 0]) + 1
    behind = {offset for offset in source.served.uncommitted[topic, 0] if offset >= last_stable_offset}
    assert len(behind & set(records)) == len(behind) // 2, "half of them were in the transaction that was open"


def test_the_commands_of_the_page_work(kafka_4: tuple[dict[str, Source], Written], tmp_path: Path) -> None:
    """Every ``tidelog`` command of the page, in its order, with the paths of this machine."""
    source = kafka_4[0]["stopped"]
    data = tmp_path / "data"
    shown = re.findall(r"^ *\$ (tidelog .*)$", PAGE.read_text(), re.MULTILINE)
    places = {
        PAGE_SOURCE: source.directory,
        PAGE_TARGET: data,
        PAGE_PROPERTIES: source.directory.parent / PAGE_PROPERTIES,
    }
    ran = []
    for line in shown:
        for on_page, here in places.items():
            line = line.replace(on_page, str(here))
        words = shlex.split(line)[1:]
        if words[0] == "serve":
            broker = WithProperties(tmp_path, words[words.index("--config") + 1])
            break
        done = run_tidelog(words)
        assert done.returncode == 0, line + done.stdout + done.stderr
        ran.append((words[0], "--dry-run" in words))
        assert data.exists() is (ran != [("adopt", True)])
    assert ran == [("adopt", True), ("adopt", False), ("check", False)]
    with broker:
        assert_served(broker.bootstrap, source)


class WithProperties(TidelogProcess):
    """A Tidelog broker with a server.properties of Kafka's, on the port of its ``advertised.listeners``."""

    def __init__(self, directory: Path, properties: str) -> None:
        listener = re.search(r"^advertised.listeners=.*:(\d+)$", Path(properties).read_text(), re.MULTILINE)
        assert listener is not None
        super().__init__(directory, {"log.cleaner.enable": "false"}, port=int(listener[1]))
        self._properties = properties

    def command(self) -> list[str]:
        return [*super().command(), "--config", self._properties]


def test_a_running_kafka_is_left_alone(kafka_4: tuple[dict[str, Source], Written]) -> None:
    assert "is in use by a running broker" in kafka_4[1].refused_while_running


def test_linked_files_leave_the_source_whole(kafka_4: tuple[dict[str, Source], Written], tmp_path: Path) -> None:
    """The broker appends after --link, and not one byte of the source changes."""
    source = tmp_path / "source"
    copy_tree(kafka_4[0]["stopped"].directory, source)
    before = contents(source)
    done = adopt(source, "--data-dir", tmp_path / "data", "--link")
    assert done.returncode == 0, done.stdout + done.stderr
    linked = [path for path in (tmp_path / "data").glob("kafka.codecs-*/*.log") if path.stat().st_nlink == 2]
    assert linked
    with TidelogProcess(tmp_path) as broker:
        assert_offsets_and_transactions(broker.bootstrap, kafka_4[0]["stopped"])
    assert contents(source) == before


def contents(directory: Path) -> dict[str, bytes]:
    """Read every file, whole."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# ---- written by Tidelog


def test_kafka_serves_logs_of_tidelog(kafka_4: tuple[dict[str, Source], Written]) -> None:
    written = kafka_4[1]
    assert written.served_by_kafka.starts == written.served_here.starts
    assert written.served_by_kafka.ends == written.served_here.ends
    assert written.served_by_kafka.uncommitted == written.served_here.uncommitted
    assert written.served_by_kafka.committed == written.served_here.committed


COMPLAINTS = (
    *("mismatches", "out of order", "not found", "invalid bytes"),
    *("isvalid: false", "exception", "corrupt"),
)
GAP = re.compile(r"^  (-?\d+) is followed by (\d+)$")


def test_dump_log_segments_has_no_complaint(tidelog_files: tuple[Path, Picture, Samples]) -> None:
    data, served, samples = tidelog_files
    places = [Place(topic, index) for topic, count in samples.topics.items() for index in range(count)]
    files = [path for place in places for path in sorted((data / str(place)).iterdir())]
    logs = [path for path in files if path.name[:20].isdigit() and path.suffix != ".deleted"]
    assert {path.suffix for path in logs} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    deep = dump(logs, "--deep-iteration")
    assert deep.returncode == 0, deep.stderr[-2000:]
    output = (deep.stdout + deep.stderr).lower()
    for complaint in COMPLAINTS:
        assert complaint not in output
    assert gaps(deep.stdout + deep.stderr) == set()
    assert deep.stdout.count("| offset:") >= sum(map(len, served.uncommitted.values()))
    indices = [path for path in logs if path.suffix in (".index", ".timeindex")]
    sanity = dump(indices, "--index-sanity-check")
    assert sanity.returncode == 0, sanity.stderr[-2000:]
    assert "exception" not in sanity.stderr.lower()
    assert sanity.stdout.count("passed sanity check") + sanity.stdout.count("is empty") == len(indices)


def gaps(printed: str) -> set[tuple[str, int, int]]:
    """Return (file, offset, next offset) under "Non-consecutive offsets in FILE", but for two that are none.

    The tool of 4.3.1 complains of Kafka's own files too: of each that does not begin with offset 0 ("-1 is followed by
    402"), and of every offset that compaction removed.
    """
    found = set()
    path = ""
    for line in printed.splitlines():
        gap = GAP.match(line)
        if gap is None:
            path = line.removeprefix("Non-consecutive offsets in ")
        elif ".compacted" not in path and (gap[1], int(gap[2])) != ("-1", int(Path(path).stem)):
            found.add((path, int(gap[1]), int(gap[2])))
    return found


def dump(files: list[Path], *options: str) -> subprocess.CompletedProcess[str]:
    return run_tool(dump_log_segments(), [*options, "--files", ",".join(map(os.fspath, files))])
