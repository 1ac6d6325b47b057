"""Apache Kafka takes over the directory of a stopped Tidelog broker, and Tidelog that directory again: no record is
lost.

One directory goes from Tidelog to Kafka and back, or from Kafka to Tidelog and back. Each broker changes something of
every kind, and the next one must say what the one before said, and go on from there. In one run both are stopped, in
the other both are killed. Older versions of Kafka, whose directories Tidelog takes and gives back, and that take those
which Tidelog made for their release: ``make kafka-versions``, or ``TIDELOG_IN_PLACE_VERSIONS=3.9.2,4.0.0,4.1.1,4.2.0``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.rivals.apache_kafka import CLUSTER_ID
from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka, run_tool
from tests.support.broker import TidelogProcess
from tests.support.metadata_changes import SHA_256, SHA_512, alter, set_quota, set_user
from tests.support.metadata_facts import BROKER, GROUP, TOPIC, Facts, facts
from tests.support.partition_change import RECOVERING
from tests.support.samples import OPEN_TRANSACTION, Samples, picture
from tests.support.share_client import ACCEPT, ShareClient, read_from_earliest
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_log
from tidelog.broker.metadata.replay import MAX_BATCH_BYTES
from tidelog.cli import main
from tidelog.client import Client
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.metadata_records.frames import decode_metadata_record
from tidelog.protocol.metadata_records.records import PartitionChangeRecord
from tidelog.protocol.record.batches import iter_batches

pytestmark = [pytest.mark.java, pytest.mark.slow]

FEATURE_COMMAND = "org.apache.kafka.tools.FeatureCommand"
SETTINGS = {
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
}
KAFKA_SETTINGS = {
    **SETTINGS,
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
FOUND = {"index.keys": "true", "index.tag.header": "kind", "retention.ms": "-1"}
GROUPS = ["readers", "new-readers"]
SHARERS = ["sharers"]
NODES = [(BROKER, "1"), (BROKER, "")]
LIMIT_S = 60.0
SEGMENT_BYTES = str(1 << 20)
"""The least that Kafka 4 takes as a topic's config (KIP-1030)."""


class GroupKinds(NamedTuple):
    """Kinds of groups beside the classic ones that a version of Kafka serves by default."""

    has_consumer: bool = True
    has_share: bool = True

    @property
    def protocol(self) -> str:
        """The newest protocol of consumers."""
        return "consumer" if self.has_consumer else "classic"


ALL_KINDS = GroupKinds()
Stop = Callable[[BrokerProcess], None]
OLDER = [version for version in os.environ.get("TIDELOG_IN_PLACE_VERSIONS", "").split(",") if version]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("stop", [BrokerProcess.terminate, BrokerProcess.kill], ids=["stopped", "killed"])
def test_kafka_takes_over_a_directory_of_tidelog_and_gives_it_back(tmp_path: Path, stop: Stop) -> None:
    ours = TidelogProcess(tmp_path, SETTINGS)
    theirs = ApacheKafka(tmp_path, KAFKA_SETTINGS, in_shared_jvm=True)
    samples = Samples("", "sample.", segment_bytes=SEGMENT_BYTES)
    try:
        ours.start()
        samples.bootstrap = ours.bootstrap
        samples.write()
        Admin(ours.bootstrap).create("indexed", 1, FOUND)
        fill(ours.bootstrap)
        written = facts_of(ours), picture(ours.bootstrap, samples.topics)
        stop(ours)
        samples.close()

        theirs.start()
        expect(theirs, written, samples)
        change(theirs.bootstrap)
        changed = facts_of(theirs), picture(theirs.bootstrap, samples.topics)
        (theirs.leave_as_killed if stop is BrokerProcess.kill else theirs.terminate)()
        metadata = theirs.data_directory / METADATA_DIRECTORY
        changes = [change for path in metadata.glob("*.log") for change in partition_changes(path, 0)]
        assert any(change.leader == 1 for change in changes)
        assert all(change.leader_recovery_state != RECOVERING for change in changes)

        ours.start()
        expect(ours, changed, samples)
        assert facts_of(ours).configs[TOPIC, "indexed"].items() >= FOUND.items()
        finish(ours.bootstrap)
        ours.terminate()
    finally:
        print(ours.output(), theirs.output(), sep="\n")
        ours.kill()
        theirs.discard()


@pytest.mark.timeout(400)
def test_kafka_returns_to_a_clean_stop(tmp_path: Path) -> None:
    """In a directory that Kafka formatted, with eligible leader replicas: no leader is elected uncleanly."""
    ours, theirs = TidelogProcess(tmp_path, SETTINGS), ApacheKafka(tmp_path, KAFKA_SETTINGS, in_shared_jvm=True)
    metadata = theirs.data_directory / METADATA_DIRECTORY
    try:
        theirs.start()
        Admin(theirs.bootstrap).create("kept", 2)
        theirs.terminate()
        ours.start()
        ours.terminate()
        left = read_metadata_log(OsFileSystem(), str(metadata))
        assert left.image.features["eligible.leader.replicas.version"] == 1
        kept = left.image.topic_by_name("kept")
        assert kept is not None
        assert [state.elr for state in kept.partitions] == [(), ()]
        theirs.start()
        for partition in (0, 1):
            Admin(theirs.bootstrap).until_led("kept", partition)
    finally:
        ours.kill()
        theirs.discard()
    changes = [change for path in metadata.glob("*.log") for change in partition_changes(path, left.end_offset)]
    assert sum(change.leader == 1 for change in changes) == 2
    assert all(change.leader_recovery_state != RECOVERING for change in changes)


def partition_changes(path: Path, offset: int) -> Iterator[PartitionChangeRecord]:
    """Yield the changes of partitions in a segment of a metadata log, from an offset on."""
    for batch in iter_batches(path.read_bytes()):
        for record in () if batch.is_control else batch.records(MAX_BATCH_BYTES):
            change = decode_metadata_record(record.value or b"")
            if record.offset >= offset and isinstance(change, PartitionChangeRecord):
                yield change


@pytest.mark.timeout(400)
@pytest.mark.skipif(not OLDER, reason="TIDELOG_IN_PLACE_VERSIONS names the versions of Kafka to go by")
@pytest.mark.parametrize("version", OLDER)
def test_tidelog_takes_over_a_directory_of_kafka_and_gives_it_back(tmp_path: Path, version: str) -> None:
    """An older Kafka's directory keeps its levels of features, so that this Kafka takes it back."""
    ours = TidelogProcess(tmp_path, SETTINGS)
    theirs = ApacheKafka(tmp_path, KAFKA_SETTINGS, version=version, in_shared_jvm=True)
    hand_over_twice(theirs, ours, version)


def hand_over_twice(first: BrokerProcess, second: BrokerProcess, version: str) -> None:
    """Write with the first broker, change with the second one and finish with the first one, all in one directory.
    ``version`` is the Kafka's."""
    kinds = GroupKinds(has_consumer=version >= "4", has_share=version >= "4.2")
    samples = Samples("", "sample.", segment_bytes=SEGMENT_BYTES)
    try:
        first.start()
        samples.bootstrap = first.bootstrap
        samples.write()
        fill(first.bootstrap, kinds)
        written = facts_of(first, kinds), picture(first.bootstrap, samples.topics)
        first.terminate()
        samples.close()

        second.start()
        expect(second, written, samples, kinds)
        change(second.bootstrap, kinds)
        changed = facts_of(second, kinds), picture(second.bootstrap, samples.topics)
        second.terminate()

        first.start()
        expect(first, changed, samples, kinds)
        finish(first.bootstrap, kinds)
        first.terminate()
    finally:
        print(first.output(), second.output(), sep="\n")
        first.discard()
        second.discard()


def format_for(directory: Path, broker: TidelogProcess, version: str) -> None:
    """Have ``tidelog format`` give the broker's directory to a release of Kafka."""
    file = directory / "format.properties"
    file.write_text(f"node.id=1\nlog.dirs={broker.data_directory}\n")
    release = version.rpartition(".")[0]
    assert main(["format", "-t", CLUSTER_ID, "-c", str(file), "--release-version", release]) == 0


@pytest.mark.timeout(400)
@pytest.mark.skipif(not OLDER, reason="TIDELOG_IN_PLACE_VERSIONS names the versions of Kafka to go by")
@pytest.mark.parametrize("version", OLDER)
def test_an_older_kafka_takes_over_a_directory_formatted_for_its_release(tmp_path: Path, version: str) -> None:
    """An older Kafka takes over a directory that was formatted for its release, and Tidelog takes it back."""
    ours = TidelogProcess(tmp_path, SETTINGS)
    theirs = ApacheKafka(tmp_path, KAFKA_SETTINGS, version=version, in_shared_jvm=True)
    format_for(tmp_path, ours, version)
    hand_over_twice(ours, theirs, version)


@pytest.mark.timeout(200)
@pytest.mark.skipif(not OLDER, reason="TIDELOG_IN_PLACE_VERSIONS names the versions of Kafka to go by")
@pytest.mark.parametrize("version", [version for version in OLDER if "4" <= version < "4.2"])
def test_a_directory_whose_features_were_lowered_is_taken_by_an_older_kafka(tmp_path: Path, version: str) -> None:
    """Its log began with levels that this Kafka does not know."""
    ours = TidelogProcess(tmp_path, SETTINGS)
    theirs = ApacheKafka(tmp_path, KAFKA_SETTINGS, version=version, in_shared_jvm=True)
    try:
        ours.start()
        Admin(ours.bootstrap).create("found", 2)
        produce(ours.bootstrap, "found", 20)
        lowered = ["--feature", "share.version=0", "--feature", "streams.version=0"]
        done = run_tool(FEATURE_COMMAND, ["--bootstrap-server", ours.bootstrap, "downgrade", *lowered])
        assert done.returncode == 0, done.stdout + done.stderr
        ours.terminate()
        theirs.start()
        admin = Admin(theirs.bootstrap)
        admin.until_led("found", 0)
        assert admin.offset("found", 0, "latest") == 20
        theirs.terminate()
    finally:
        print(ours.output(), theirs.output(), sep="\n")
        ours.kill()
        theirs.discard()


def facts_of(broker: BrokerProcess, kinds: GroupKinds = ALL_KINDS) -> Facts:
    """Return the facts without those of kinds of groups that the Kafka is too old for."""
    groups = ["new-readers"] * kinds.has_consumer + SHARERS * kinds.has_share
    return facts(
        broker.bootstrap, GROUPS, SHARERS if kinds.has_share else [], NODES + [(GROUP, name) for name in groups]
    )


def expect(broker: BrokerProcess, before: tuple[Facts, Any], samples: Samples, kinds: GroupKinds = ALL_KINDS) -> None:
    """Check that the broker says what the one before it said."""
    until_led(broker, before[0])
    found = facts_of(broker, kinds)
    for name, value in known_to_both(before[0])._asdict().items():
        assert getattr(known_to_both(found), name) == value, name
    records = picture(broker.bootstrap, samples.topics)
    for name in ("uncommitted", "committed", "starts", "ends"):
        assert getattr(records, name) == getattr(before[1], name), name


def known_to_both(found: Facts) -> Facts:
    """Leave out the configs that Tidelog alone has: Kafka keeps them and does not show them."""
    configs = {
        resource: {key: value for key, value in texts.items() if not key.startswith("index.")}
        for resource, texts in found.configs.items()
    }
    return found._replace(configs=configs)


def until_led(broker: BrokerProcess, before: Facts) -> None:
    """Wait until every partition has a leader that answers."""
    for topic, (_, count) in before.topics.items():
        for partition in range(count):
            Admin(broker.bootstrap).until_led(topic, partition)


def fill(bootstrap: str, kinds: GroupKinds = ALL_KINDS) -> None:
    """Write something of every kind that metadata have."""
    admin = Admin(bootstrap)
    admin.create("found", 2, {"retention.ms": "-1"})
    admin.create("doomed", 3)
    admin.create("shared", 1)
    admin.set_config("sample.trimmed", "max.message.bytes", "777777")
    for topic in ("found", "doomed", "shared"):
        produce(bootstrap, topic, 50)
    consume(bootstrap, "found", group="new-readers", protocol=kinds.protocol)
    if kinds.has_share:
        share(bootstrap, "m1", 20)
    if kinds.has_consumer:
        alter(bootstrap, GROUP, "new-readers", "consumer.session.timeout.ms", "46000")
    alter(bootstrap, BROKER, "1", "log.cleaner.threads", "2")
    alter(bootstrap, BROKER, "", "message.max.bytes", "2000000")
    set_quota(bootstrap, [("user", "ann")], "producer_byte_rate", 1048576.0)
    set_quota(bootstrap, [("user", None), ("client-id", "c")], "request_percentage", 50.5)
    set_quota(bootstrap, [("ip", "10.0.0.1")], "connection_creation_rate", 7.0)
    set_user(bootstrap, "ann", SHA_256, 4096)
    set_user(bootstrap, "bob", SHA_512, 8192)


def change(bootstrap: str, kinds: GroupKinds = ALL_KINDS) -> None:
    """Change what ``fill`` made, and make more."""
    admin = Admin(bootstrap)
    admin.delete("doomed")
    admin.create("made-there", 2, {"retention.ms": "86400000"})
    admin.grow("shared", 3)
    admin.set_config("sample.trimmed", "max.message.bytes", "888888")
    for topic in ("found", "made-there", "shared", "sample.compacted"):
        produce(bootstrap, topic, 30)
    transact(bootstrap, "there")
    consume(bootstrap, "found", group="new-readers", protocol=kinds.protocol)
    consume(bootstrap, "sample.codecs", group="readers", protocol="classic")
    if kinds.has_share:
        share(bootstrap, "m2", 10)
    if kinds.has_consumer:
        alter(bootstrap, GROUP, "new-readers", "consumer.session.timeout.ms", "47000")
    alter(bootstrap, BROKER, "", "message.max.bytes", "3000000")
    alter(bootstrap, BROKER, "1", "log.cleaner.threads", None)
    set_quota(bootstrap, [("user", "ann")], "producer_byte_rate", None)
    set_quota(bootstrap, [("user", "ann")], "consumer_byte_rate", 2097152.0)
    set_user(bootstrap, "ann", SHA_256, None)
    set_user(bootstrap, "cid", SHA_256, 5000)


def finish(bootstrap: str, kinds: GroupKinds = ALL_KINDS) -> None:
    """Go on as clients do: records, transactions (the one left open is aborted), groups, topics."""
    admin = Admin(bootstrap)
    for topic in ("found", "made-there", "shared"):
        produce(bootstrap, topic, 5)
    transact(bootstrap, "here again")
    transact(bootstrap, OPEN_TRANSACTION)
    consume(bootstrap, "found", group="new-readers", protocol=kinds.protocol)
    if kinds.has_share:
        share(bootstrap, "m3", 5)
    admin.delete("made-there")
    admin.create("doomed", 1)
    assert admin.offset("doomed", 0, "latest") == 0


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer: Any = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"k%d" % (number % 7), partition=0, headers=[("kind", b"x")])
    assert producer.flush(LIMIT_S) == 0


def transact(bootstrap: str, name: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}
    producer: Any = Producer(settings)
    producer.init_transactions(LIMIT_S)
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce("sample.transactions", name)
        (producer.commit_transaction if commits else producer.abort_transaction)(LIMIT_S)


def consume(bootstrap: str, topic: str, group: str, protocol: str) -> None:
    """Go on from what the group committed, and commit after one record at least."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol, "log_level": 0,
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer: Any = Consumer(settings)
    committed = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)[0].offset
    consumer.subscribe([topic])
    deadline = time.monotonic() + LIMIT_S
    while True:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None and message.partition() == 0:
            break
        assert time.monotonic() < deadline, f"{group} gets nothing of {topic}"
    assert message.offset() == max(committed, 0)
    consumer.commit(message, asynchronous=False)
    consumer.close()


def share(bootstrap: str, member: str, count: int) -> None:
    """Accept the next records of a share group: each is delivered once."""
    topic_id = facts(bootstrap, [], [], []).topics["shared"][0]
    with Client(bootstrap, timeout_s=30) as client:
        read_from_earliest(client, SHARERS[0])
        sharer = ShareClient(client, SHARERS[0], ("shared", topic_id), member)
        sharer.join()
        deadline = time.monotonic() + LIMIT_S
        while not (runs := sharer.fetch(max_records=count, max_wait_ms=100)):
            assert time.monotonic() < deadline, "nothing is acquired"
        for run in runs:
            assert sharer.acknowledge(run.first, run.last, ACCEPT) == 0
