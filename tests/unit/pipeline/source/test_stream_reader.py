"""The streaming reader over real logs: triggers, limits, new and lost partitions, topics created again."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows, ReadMinRows

from tests.support.logs import NOW_MS, append
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import write_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.errors import DataLossError, OffsetRangeError, OptionError, PipelineError, TopicRecreatedError
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.source.stream_reader import TidelogStreamReader
from tidelog.protocol.record.record_batch import Record, build_batch

FIRST_ID, SECOND_ID = bytes(range(16)), bytes(range(16, 32))
PER_BATCH, VALUE = 10, b"v" * 90


class Topic:
    """Logs of one topic in a data directory."""

    def __init__(self, root: Path, topic_id: bytes = FIRST_ID) -> None:
        self.root = root
        self.topic_id = topic_id
        self.logs: dict[int, UnifiedLog] = {}
        (root / "meta.properties").write_text("version=1\n")

    def append(self, partition: int, batches: int) -> None:
        """Append batches of PER_BATCH records of about 100 bytes."""
        log = self.logs.get(partition) or self._open(partition)
        for _ in range(batches):
            append(log, build_batch([Record(i, NOW_MS, b"k", VALUE) for i in range(PER_BATCH)]))

    def remove(self, partition: int) -> None:
        """Remove the partition's directory."""
        self.logs.pop(partition).close()
        shutil.rmtree(self.root / f"t-{partition}")

    def close(self) -> None:
        for log in self.logs.values():
            log.close()

    def _open(self, partition: int) -> UnifiedLog:
        name, directory = TopicPartition("t", partition), self.root / f"t-{partition}"
        directory.mkdir()
        write_partition_metadata(OsFileSystem(), str(directory), self.topic_id)
        config = LogConfig({"segment.bytes": 8000, "index.interval.bytes": 1})
        environment = LogEnvironment(OsFileSystem(), ManualTime(NOW_MS))
        state = DirectoryState(str(self.root))
        log = self.logs[partition] = load_log(
            LoadRequest(
                name, str(directory), config, environment, state, log_start_offset=0, recovery_point=0, clean=True
            )
        )
        return log


@pytest.fixture
def topic(tmp_path: Path) -> Any:
    made = Topic(tmp_path)
    yield made
    made.close()


def reader(topic: Topic, **options: str) -> TidelogStreamReader:
    given = {"path": str(topic.root), "subscribe": "t", "startingOffsets": "earliest", **options}
    return TidelogStreamReader(parse_options(given, streaming=True), Columns(("partition", "offset")))


def read(stream: TidelogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """Read partition and offset of every row, with the plan converted to JSON and back as Spark does."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    found = []
    for part in stream.partitions(start, end):
        for batch in stream.read(part):
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return sorted(found)


def drained(stream: TidelogStreamReader, start: dict[str, Any]) -> list[list[tuple[int, int]]]:
    """Return the rows of each trigger until one finds nothing new."""
    triggers: list[list[tuple[int, int]]] = []
    while True:
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        if end == start:
            return triggers
        triggers.append(read(stream, start, end))
        start = end


def everything(**partitions: int) -> list[tuple[int, int]]:
    return [(int(name[1:]), offset) for name, batches in partitions.items() for offset in range(batches * PER_BATCH)]


def test_one_trigger_takes_all_without_a_limit(topic: Topic) -> None:
    topic.append(0, 20)
    topic.append(1, 3)
    stream = reader(topic)
    assert stream.getDefaultReadLimit() == ReadAllAvailable()
    start = stream.initialOffset()
    assert start == {"t": {"0": 0, "1": 0}, "@topicIds": {"t": "AAECAwQFBgcICQoLDA0ODw"}}
    assert drained(stream, start) == [everything(p0=20, p1=3)]
    assert stream.reportLatestOffset() == {**start, "t": {"0": 200, "1": 30}}


def test_appended_records_are_in_the_next_trigger(topic: Topic) -> None:
    topic.append(0, 1)
    stream = reader(topic, startingOffsets="latest")
    start = stream.initialOffset()
    assert drained(stream, start) == []
    topic.append(0, 2)
    assert drained(stream, start) == [[(0, offset) for offset in range(10, 30)]]


def test_rows_limit_a_trigger_and_every_row_comes_once(topic: Topic) -> None:
    topic.append(0, 20)
    topic.append(1, 5)
    stream = reader(topic, maxOffsetsPerTrigger="77")
    assert stream.getDefaultReadLimit() == ReadMaxRows(77)
    triggers = drained(stream, stream.initialOffset())
    assert sorted(row for rows in triggers for row in rows) == everything(p0=20, p1=5)
    assert max(map(len, triggers)) <= 78
    assert len(triggers) == 4


def test_bytes_limit_a_trigger_and_every_row_comes_once(topic: Topic) -> None:
    topic.append(0, 40)
    topic.append(1, 7)
    stream = reader(topic, maxBytesPerTrigger="12000")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(12000)
    triggers = drained(stream, stream.initialOffset())
    assert sorted(row for rows in triggers for row in rows) == everything(p0=40, p1=7)
    assert max(map(len, triggers)) * 100 <= 12000
    assert 4 <= len(triggers) <= 7


def test_both_limits_hold_at_once(topic: Topic) -> None:
    topic.append(0, 30)
    stream = reader(topic, maxOffsetsPerTrigger="100", maxBytesPerTrigger="5000")
    triggers = drained(stream, stream.initialOffset())
    assert sorted(row for rows in triggers for row in rows) == everything(p0=30)
    assert max(map(len, triggers)) <= 50


def test_a_limit_below_one_batch_still_continues(topic: Topic) -> None:
    topic.append(0, 3)
    stream = reader(topic, maxBytesPerTrigger="1")
    assert [len(rows) for rows in drained(stream, stream.initialOffset())] == [PER_BATCH] * 3


def test_small_tasks_give_no_row_twice_from_the_middle_of_a_batch(topic: Topic) -> None:
    topic.append(0, 12)
    stream = reader(topic, bytesPerTask="500")
    start, end = {"t": {"0": 13}}, {"t": {"0": 117}}
    assert read(stream, start, end) == [(0, offset) for offset in range(13, 117)]


def test_trigger_once_takes_all_whatever_the_options_say(topic: Topic) -> None:
    topic.append(0, 20)
    stream = reader(topic, maxOffsetsPerTrigger="5")
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable())["t"] == {"0": 200}


def test_a_minimum_holds_triggers_back_but_not_the_first(topic: Topic) -> None:
    topic.append(0, 1)
    stream = reader(topic, minOffsetsPerTrigger="25")
    assert stream.getDefaultReadLimit() == ReadMinRows(25)
    first = stream.latestOffset(stream.initialOffset(), ReadMinRows(25))
    assert first["t"] == {"0": 10}
    topic.append(0, 2)
    assert stream.latestOffset(first, ReadMinRows(25)) == first
    topic.append(0, 1)
    assert stream.latestOffset(first, ReadMinRows(25))["t"] == {"0": 40}


def test_a_minimum_waits_no_longer_than_its_delay(topic: Topic) -> None:
    topic.append(0, 1)
    stream = reader(topic, minOffsetsPerTrigger="25", maxTriggerDelay="0ms")
    first = stream.latestOffset(stream.initialOffset(), ReadMinRows(25))
    topic.append(0, 1)
    assert stream.latestOffset(first, ReadMinRows(25))["t"] == {"0": 20}


def test_available_now_ends_where_the_logs_ended_when_it_began(topic: Topic) -> None:
    topic.append(0, 5)
    stream = reader(topic, maxOffsetsPerTrigger="20", minOffsetsPerTrigger="19")
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    topic.append(0, 5)
    topic.append(1, 5)
    triggers = drained(stream, start)
    assert [len(rows) for rows in triggers] == [20, 20, 10]
    assert sorted(row for rows in triggers for row in rows) == everything(p0=5)


def test_a_new_partition_is_read_from_its_first_offset(topic: Topic) -> None:
    topic.append(0, 1)
    stream = reader(topic, startingOffsets="latest")
    start = stream.initialOffset()
    topic.append(1, 2)
    assert drained(stream, start) == [everything(p1=2)]


def test_a_topic_created_again_is_an_error_whatever_the_options_say(topic: Topic) -> None:
    topic.append(0, 1)
    stream = reader(topic, failOnDataLoss="false")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    topic.remove(0)
    topic.topic_id = SECOND_ID
    topic.append(0, 5)
    for ask in (lambda: stream.latestOffset(start, ReadAllAvailable()), lambda: stream.partitions(start, end)):
        with pytest.raises(TopicRecreatedError, match="topic t was deleted and created again"):
            ask()


def test_a_lost_partition_is_data_loss(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.append(0, 1)
    topic.append(1, 1)
    start = reader(topic).initialOffset()
    topic.remove(1)
    with pytest.raises(DataLossError, match="partitions t-1 are gone"):
        reader(topic).latestOffset(start, ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        assert drained(reader(topic, failOnDataLoss="false"), start) == [everything(p0=1)]
    assert "partitions t-1 are gone" in caplog.text


def test_records_that_retention_took_are_data_loss(topic: Topic) -> None:
    topic.append(0, 30)
    stream = reader(topic)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    segments = sorted((topic.root / "t-0").glob("*.log"))
    for path in segments[:2]:
        path.unlink()
    begin = int(segments[2].stem)
    with pytest.raises(DataLossError, match=f"t-0 begins at {begin}, records from 0 on are gone"):
        stream.partitions(start, end)
    assert read(reader(topic, failOnDataLoss="false"), start, end) == [(0, n) for n in range(begin, 300)]


def test_a_log_that_ends_below_the_position_is_data_loss(topic: Topic) -> None:
    topic.append(0, 1)
    start = {"t": {"0": 25}}
    with pytest.raises(DataLossError, match="t-0 ends at 10, below the position 25"):
        reader(topic).latestOffset(start, ReadAllAvailable())
    loose = reader(topic, failOnDataLoss="false")
    end = loose.latestOffset(start, ReadAllAvailable())
    assert end["t"] == {"0": 10}
    assert read(loose, start, end) == []
    topic.append(0, 1)
    assert drained(loose, end) == [[(0, offset) for offset in range(10, 20)]]


def test_a_batch_that_ends_beyond_the_log_is_data_loss(topic: Topic) -> None:
    topic.append(0, 1)
    with pytest.raises(DataLossError, match="t-0 ends at 10, below 15 where this batch ends"):
        reader(topic).partitions({"t": {"0": 0}}, {"t": {"0": 15}})


def test_a_group_needs_a_broker(topic: Topic) -> None:
    with pytest.raises(OptionError, match=r"commitGroup=lag needs kafka\.bootstrap\.servers"):
        reader(topic, commitGroup="lag")


def test_offsets_to_begin_with_name_every_partition(topic: Topic) -> None:
    topic.append(0, 3)
    topic.append(1, 3)
    with pytest.raises(OptionError, match="startingOffsets must name every partition: missing t-1"):
        reader(topic, startingOffsets='{"t":{"0":5}}').initialOffset()
    stream = reader(topic, startingOffsets='{"t":{"0":25,"1":-2}}')
    assert drained(stream, stream.initialOffset()) == [[*((0, n) for n in range(25, 30)), *((1, n) for n in range(30))]]


def test_a_starting_timestamp_leaves_out_older_records(topic: Topic) -> None:
    topic.append(0, 2)
    with pytest.raises(OffsetRangeError, match=f"no record at or after {NOW_MS + 1} ms"):
        reader(topic, startingTimestamp=str(NOW_MS + 1)).initialOffset()
    latest = {"startingTimestamp": str(NOW_MS + 1), "startingOffsetsByTimestampStrategy": "latest"}
    assert reader(topic, **latest).initialOffset()["t"] == {"0": 20}
    assert reader(topic, startingTimestamp=str(NOW_MS)).initialOffset()["t"] == {"0": 0}


def test_a_minimum_above_the_maximum_is_refused(topic: Topic) -> None:
    with pytest.raises(OptionError, match="minOffsetsPerTrigger=9 is above maxOffsetsPerTrigger=8"):
        reader(topic, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8")


def test_a_read_limit_of_files_is_refused(topic: Topic) -> None:
    topic.append(0, 1)
    stream = reader(topic)
    with pytest.raises(PipelineError, match="read limit ReadMaxFiles: expected rows or bytes"):
        stream.latestOffset(stream.initialOffset(), ReadMaxFiles(1))
