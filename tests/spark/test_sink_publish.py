"""Publishing staged batches to a real broker, without Spark: once, atomically, and by one driver only."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.kafka_python import kafka, read_to_end
from tidelog.client.cluster import TRANSACTION, Cluster, ask
from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.commit import Publication, PublishError, publish
from tidelog.pipeline.sink.produce import MAX_IN_FLIGHT
from tidelog.pipeline.sink.rows import sink_columns
from tidelog.pipeline.sink.staging import BatchAddress, StagedFile, StagingError, TaskIdentity
from tidelog.pipeline.sink.task import UnknownTopicError, stage_rows
from tidelog.protocol.errors import ConcurrentTransactionsError
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

PARTITIONS = 2
ARRIVAL_S = 60.0


@pytest.fixture
def topic(tidelog_broker: TidelogProcess) -> str:
    name = f"publish-{uuid.uuid4().hex[:8]}"
    Admin(tidelog_broker.bootstrap).create(name, PARTITIONS)
    return name


@pytest.fixture
def options(tidelog_broker: TidelogProcess, tmp_path: Path, topic: str) -> SinkOptions:
    return SinkOptions(tidelog_broker.bootstrap, tmp_path, topic=topic, batch_bytes=2000, delivery_timeout_ms=3000)


def stage(options: SinkOptions, writer: str, batch_id: int, *, rows: int = 100, task: int = 0) -> StagedFile:
    table = pa.table(
        {
            "key": [b"%d" % number for number in range(rows)],
            "value": [b"%d.%d.%d " % (batch_id, task, number) * 8 for number in range(rows)],
        }
    )
    columns = sink_columns([("key", "binary"), ("value", "binary")], options)
    return stage_rows(iter(table.to_batches()), TaskIdentity(writer, batch_id, task, 0), options, columns)


def read(options: SinkOptions, isolation: str = "read_committed") -> list[bytes]:
    """Read the values in order within each partition."""
    return [record.value for record in read_to_end(options.bootstrap, str(options.topic), isolation)]


def test_a_batch_is_published_once_however_often_it_comes(options: SinkOptions) -> None:
    writer = str(uuid.uuid4())
    files = tuple(stage(options, writer, 4, task=task) for task in (1, 0))
    assert len(files[0].batches) > PARTITIONS  # several batches each: sequences go on
    assert publish(options, Publication(writer, 4, files))
    again = tuple(stage(options, writer, 4, task=task) for task in (0, 1))
    assert not publish(options, Publication(writer, 4, again))
    assert not publish(options, Publication(writer, 3, (stage(options, writer, 3),)))
    assert publish(options, Publication(writer, 5, (stage(options, writer, 5),)))
    found = Counter(read(options))
    assert set(found.values()) == {1}
    assert Counter(value.split(b".")[0] for value in found) == {b"4": 200, b"5": 100}


def test_rows_of_a_task_keep_their_order_after_those_of_the_task_before(options: SinkOptions) -> None:
    writer = str(uuid.uuid4())
    publish(options, Publication(writer, 0, tuple(stage(options, writer, 0, task=task) for task in (1, 0))))
    marks = [(int(v.split(b".")[1]), int(v.split()[0].split(b".")[2])) for v in read(options)]
    starts = [number for number in range(1, len(marks)) if marks[number] < marks[number - 1]]
    assert len(starts) == PARTITIONS - 1  # one run, ascending, in each partition


def test_many_requests_under_way_keep_their_order(options: SinkOptions) -> None:
    writer = str(uuid.uuid4())
    small = dataclasses.replace(options, batch_bytes=200)
    staged = stage(small, writer, 0, rows=2000)
    assert len(staged.batches) > 100 * MAX_IN_FLIGHT
    assert publish(small, Publication(writer, 0, (staged,)))
    numbers = [int(value.split()[0].split(b".")[2]) for value in read(options)]
    assert sorted(numbers) == list(range(2000))
    assert sum(after < before for before, after in pairwise(numbers)) == PARTITIONS - 1


@dataclasses.dataclass(frozen=True)
class FencingFile(StagedFile):
    """A staged file at whose last batch, so within the transaction, a newer driver of the query appears."""

    options: SinkOptions = dataclasses.field(kw_only=True)

    def read(self, batch: BatchAddress) -> bytearray:
        """Read the batch; where it is the last one, after InitProducerId of a newer driver, when the broker has some
        batches before it."""
        if batch == self.batches[-1]:
            deadline = time.monotonic() + ARRIVAL_S
            while not read(self.options, "read_uncommitted"):
                assert time.monotonic() < deadline, "no batch reached the broker"
            name = f"tidelog-spark-{self.task.writer}"
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000)
            with Cluster(self.options.bootstrap, 5) as cluster:
                coordinator = cluster.coordinator(name, TRANSACTION)
                while (
                    ask(coordinator, request, InitProducerIdResponse, 4).error_code == ConcurrentTransactionsError.code
                ):
                    time.sleep(0.01)  # the open transaction is being aborted
        return super().read(batch)


def test_a_driver_that_another_one_fenced_publishes_nothing(options: SinkOptions) -> None:
    writer = str(uuid.uuid4())
    staged = stage(options, writer, 0)
    fenced = FencingFile(staged.task, staged.path, staged.batches, options=options)
    with pytest.raises(PublishError, match="another driver writes for this query"):
        publish(options, Publication(writer, 0, (fenced,)))
    assert read(options) == []
    assert read(options, "read_uncommitted")
    assert publish(options, Publication(writer, 0, (staged,)))
    assert len(read(options)) == 100


@dataclasses.dataclass(frozen=True)
class DyingBrokerFile(StagedFile):
    """A staged file at whose last batch the broker is killed and started again, as often as ``brokers`` has items."""

    options: SinkOptions = dataclasses.field(kw_only=True)
    brokers: list[TidelogProcess] = dataclasses.field(default_factory=list)
    seen: list[int] = dataclasses.field(default_factory=list)

    def read(self, batch: BatchAddress) -> bytearray:
        """Read the batch; where it is the last one, after a kill -9 of the broker, which has got some before it."""
        if batch == self.batches[-1] and self.brokers:
            deadline = time.monotonic() + ARRIVAL_S
            while (there := len(read(self.options, "read_uncommitted"))) <= max(self.seen, default=0):
                assert time.monotonic() < deadline, "no batch reached the broker"
            self.seen.append(there)
            broker = self.brokers.pop()
            broker.kill()
            broker.start()
        return super().read(batch)


def test_a_broker_that_is_killed_within_the_transaction_costs_a_second_attempt(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path / "broker") as broker:
        Admin(broker.bootstrap).create("out", PARTITIONS)
        options = SinkOptions(broker.bootstrap, tmp_path, topic="out", batch_bytes=2000)
        staged = stage(options, "w", 0)
        dying = DyingBrokerFile(staged.task, staged.path, staged.batches, options=options, brokers=[broker, broker])
        assert publish(options, Publication("w", 0, (dying,)))
        assert not dying.brokers
        assert len(read(options)) == len(set(read(options))) == 100
        assert len(read(options, "read_uncommitted")) > 100


@pytest.mark.java
def test_apache_kafka_takes_batches_as_well(tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", in_shared_jvm=True) as broker:
        Admin(broker.bootstrap).create("out", PARTITIONS)
        options = SinkOptions(broker.bootstrap, tmp_path, topic="out", batch_bytes=2000)
        for batch_id in (0, 1, 1):
            published = publish(options, Publication("w", batch_id, (stage(options, "w", batch_id),)))
        assert not published
        assert len(read(options)) == len(set(read(options))) == 200


def test_a_batch_too_large_for_the_topic_leaves_nothing_and_no_open_transaction(
    options: SinkOptions, tidelog_broker: TidelogProcess
) -> None:
    name = f"{options.topic}-small"
    Admin(tidelog_broker.bootstrap).create(name, PARTITIONS, {"max.message.bytes": "1500"})
    small = dataclasses.replace(options, topic=name)
    writer = str(uuid.uuid4())
    with pytest.raises(PublishError, match=r"make kafka\.batch\.size smaller"):
        publish(small, Publication(writer, 0, (stage(small, writer, 0),)))
    fitting = dataclasses.replace(small, batch_bytes=1000)
    assert publish(fitting, Publication(writer, 0, (stage(fitting, writer, 0),)))
    assert len(read(small)) == 100


def test_a_topic_deleted_meanwhile_is_named_and_not_created_again(
    options: SinkOptions, tidelog_broker: TidelogProcess
) -> None:
    writer = str(uuid.uuid4())
    staged = stage(options, writer, 0)
    admin = Admin(tidelog_broker.bootstrap)
    admin.delete(str(options.topic))
    brief = dataclasses.replace(options, delivery_timeout_ms=500)
    with pytest.raises(PublishError, match=str(options.topic)):
        publish(brief, Publication(writer, 0, (staged,)))
    assert options.topic not in admin.topics()


def test_a_topic_with_fewer_partitions_than_meanwhile_is_named(
    options: SinkOptions, tidelog_broker: TidelogProcess
) -> None:
    writer = str(uuid.uuid4())
    staged = stage(options, writer, 0)
    admin = Admin(tidelog_broker.bootstrap)
    admin.delete(str(options.topic))
    admin.create(str(options.topic), 1)
    brief = dataclasses.replace(options, delivery_timeout_ms=500)
    with pytest.raises(PublishError, match=rf"{options.topic}-1: This broker has no such topic or partition"):
        publish(brief, Publication(writer, 0, (staged,)))
    assert read(options) == []


def test_a_damaged_staged_file_is_not_published(options: SinkOptions) -> None:
    writer = str(uuid.uuid4())
    staged = stage(options, writer, 0)
    assert staged.path is not None
    data = bytearray(staged.path.read_bytes())
    data[-1] ^= 1
    staged.path.write_bytes(data)
    with pytest.raises(StagingError, match="is damaged"):
        publish(options, Publication(writer, 0, (staged,)))
    assert read(options) == []
    assert publish(options, Publication(writer, 0, (stage(options, writer, 0),)))  # answers were due: all are taken
    assert len(read(options)) == 100


def test_an_empty_batch_asks_the_broker_nothing(options: SinkOptions) -> None:
    nowhere = dataclasses.replace(options, bootstrap="127.0.0.1:1")
    assert not publish(nowhere, Publication("w", 0, (stage(options, "w", 0, rows=0),)))


def test_a_broker_that_is_not_there_is_named(options: SinkOptions) -> None:
    nowhere = dataclasses.replace(options, bootstrap="127.0.0.1:1", delivery_timeout_ms=300)
    with pytest.raises(PublishError, match=r"cannot connect to 127\.0\.0\.1:1"):
        publish(nowhere, Publication("w", 0, (stage(options, "w", 0),)))
    with pytest.raises(UnknownTopicError, match=r"cannot write to topic .*: cannot connect to 127.0.0.1:1"):
        stage(nowhere, "w", 0)


def test_one_server_of_the_list_is_enough(options: SinkOptions) -> None:
    listed = dataclasses.replace(options, bootstrap=f"127.0.0.1:1, {options.bootstrap}")
    assert publish(listed, Publication(str(uuid.uuid4()), 0, (stage(listed, "w", 0),)))


def test_a_write_that_comes_once_leaves_no_group(options: SinkOptions) -> None:
    writer = str(uuid.uuid4())
    assert publish(options, Publication(writer, 0, (stage(options, writer, 0),), is_last=True))
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=options.bootstrap)
    groups = admin.list_groups()
    admin.close()
    assert not [group for group in groups if writer in str(group)]


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_arrives(options: SinkOptions, codec: int) -> None:
    packed = dataclasses.replace(options, codec=codec, batch_bytes=100_000)
    writer = str(uuid.uuid4())
    assert publish(packed, Publication(writer, 0, (stage(packed, writer, 0),)))
    assert len(read(packed)) == 100
