"""Plans built from options, over real logs: bounds, times, keys, tasks, and the records that each task reads."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.support.pipelines import NOW_MS, TOPIC_ID, DataDirectory, end_transaction, fill, write
from tidelog.client.cluster import Cluster
from tidelog.client.security import Security
from tidelog.log.files.checkpoints import (
    CLEANER_OFFSET_FILE,
    LOG_START_OFFSET_FILE,
    write_offset_checkpoint,
    write_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.decode.decode import ReadOptions, read_slice
from tidelog.pipeline.errors import (
    DataLossError,
    OffsetRangeError,
    OptionError,
    PipelineError,
    SelectionError,
    TopicRecreatedError,
)
from tidelog.pipeline.files import segment_files
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.plan import holes, offsets
from tidelog.pipeline.plan.holes import marked_below
from tidelog.pipeline.plan.offsets import broker_ends, log_bounds
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, SegmentSlice, group, plan
from tidelog.pipeline.plan.request import batch_request
from tidelog.pipeline.plan.selection import ensure_same_topics, find_partitions
from tidelog.pipeline.plan.timestamps import first_offset_at_or_after
from tidelog.pipeline.plan.transactions import last_stable
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

pytest.importorskip("pyarrow")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(tmp_path / "data")
    yield directory
    directory.close()


def request_of(data: DataDirectory, **given: str) -> ReadRequest:
    options = {name.replace("_", "."): value for name, value in given.items()}
    if not {"subscribe", "assign", "subscribePattern"} & options.keys():
        options["subscribe"] = "t"
    return batch_request(parse_options({"path": str(data.path), **options}))


def offsets_of(request: ReadRequest, slices: list[SegmentSlice] | None = None) -> list[int]:
    options = ReadOptions(row_filter=request.row_filter, count=request.count)
    found: list[int] = []
    for piece in plan(request) if slices is None else slices:
        for batch in read_slice(piece, Columns(("offset",)), options=options):
            found += batch.column(0).to_pylist()
    return found


class TestSelection:
    def test_topics_partitions_and_patterns(self, data: DataDirectory) -> None:
        for topic, partition in (("a", 0), ("a", 1), ("ab", 0), ("c-d", 3)):
            data.log(topic, partition)
        (data.path / "a-2.0123-delete").mkdir()
        (data.path / "notes").mkdir()

        def chosen(**given: str) -> list[tuple[str, int]]:
            choice = parse_options({"path": "/", **given}).choice
            return [(found.topic, found.partition) for found in find_partitions([str(data.path)], choice)]

        assert chosen(subscribe="a,c-d") == [("a", 0), ("a", 1), ("c-d", 3)]
        assert chosen(assign='{"a":[1]}') == [("a", 1)]
        data.log("__consumer_offsets")
        assert ("__consumer_offsets", 0) not in chosen(subscribePattern=".*")
        assert chosen(subscribePattern="a.*") == [("a", 0), ("a", 1), ("ab", 0)]

    def test_a_missing_topic_partition_or_path_is_an_error(self, data: DataDirectory, tmp_path: Path) -> None:
        data.log("a")
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "file").touch()
        for path, option, message in (
            (data.path, {"subscribe": "b"}, "topic b has no partition below"),
            (data.path, {"assign": '{"a":[7]}'}, "partition a-7 is not below"),
            (data.path, {"subscribePattern": "x.*"}, "matches subscribePattern=x.*"),
            (tmp_path / "no", {"subscribe": "a"}, "does not exist: expected a data directory"),
            (tmp_path / "foreign", {"subscribe": "a"}, "is not a Kafka data directory: expected meta.properties"),
            (tmp_path / "foreign" / "file", {"subscribe": "a"}, "cannot be listed: Not a directory"),
        ):
            with pytest.raises(SelectionError, match=re.escape(message)):
                find_partitions([str(path)], parse_options({"path": "/", **option}).choice)

    def test_one_partition_in_two_directories(self, data: DataDirectory, tmp_path: Path) -> None:
        fill(data.log("a"), 1)
        shutil.copytree(data.path, tmp_path / "copy")
        with pytest.raises(SelectionError, match="a-0 is in "):
            find_partitions(
                [str(data.path), str(tmp_path / "copy")], parse_options({"path": "/", "subscribe": "a"}).choice
            )

    def test_a_partition_that_is_made_at_this_moment_has_its_topics_id(
        self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The id shows whether another topic took the name while records were read."""
        partition = data.path / "a-0"
        partition.mkdir()

        def make_and_list(directory: str) -> list[str]:
            if directory == str(partition):
                write_partition_metadata(OsFileSystem(), directory, TOPIC_ID)
                (partition / "00000000000000000000.log").touch()
            return os.listdir(directory)

        monkeypatch.setattr("tidelog.pipeline.plan.selection.names_in", make_and_list)
        directories = find_partitions([str(data.path)], parse_options({"path": "/", "subscribe": "a"}).choice)
        assert [directory.topic_id for directory in directories] == [TOPIC_ID]

    def test_a_topic_created_again_is_reported(self, data: DataDirectory) -> None:
        data.log("a")
        write_partition_metadata(OsFileSystem(), str(data.path / "a-0"), TOPIC_ID)
        directories = find_partitions([str(data.path)], parse_options({"path": "/", "subscribe": "a"}).choice)
        ensure_same_topics([("a", TOPIC_ID), ("b", b"")], directories)
        with pytest.raises(TopicRecreatedError, match="topic a was deleted and created again: its id was AQID"):
            ensure_same_topics([("a", bytes(range(1, 17)))], directories)


class TestBounds:
    def test_the_end_is_that_of_the_records(self, data: DataDirectory) -> None:
        log = data.log("t")
        assert log_bounds(request_directory(data)) == (0, 0, 0)
        for _ in range(5):
            fill(log, 7)
            bounds = log_bounds(request_directory(data), read_committed=True)
            assert (bounds.start, bounds.end, bounds.last_stable) == (0, log.log_end_offset, log.log_end_offset)

    def test_the_start_is_in_the_checkpoint(self, data: DataDirectory) -> None:
        fill(data.log("t"), 20)
        path = str(data.path / "log-start-offset-checkpoint")
        write_offset_checkpoint(OsFileSystem(), path, {TopicPartition("t", 0): 33, TopicPartition("u", 0): 5})
        assert log_bounds(request_directory(data)).start == 33
        assert offsets_of(request_of(data)) == list(range(33, 100))

    def test_the_last_stable_offset_over_rolls_and_restarts(self, data: DataDirectory) -> None:
        log = data.log("t")
        for producer in range(1, 6):
            options = {"producer_id": producer, "producer_epoch": 0, "is_transactional": True}
            write(log, [Record(0, 1, b"k", b"v")], base_sequence=0, **options)
            fill(log, 10)
        for ended in (2, 1, 3, 5, 4):
            end_transaction(log, ended, commit=ended % 2 == 0)
            bounds = log_bounds(request_directory(data), read_committed=True)
            assert bounds.last_stable == log.last_stable_offset
            assert bounds.end == log.log_end_offset
        for snapshot in (data.path / "t-0").glob("*.snapshot"):
            snapshot.write_bytes(b"torn")
        assert log_bounds(request_directory(data), read_committed=True).last_stable == log.last_stable_offset

    @pytest.mark.parametrize("rolled", [False, True])
    def test_a_torn_tail_does_not_stop_the_search_for_open_transactions(
        self, data: DataDirectory, rolled: bool
    ) -> None:
        """After a crash there is no snapshot at the end, so the batches before the tail are walked over."""
        log = data.log("t")
        fill(log, 3)
        write(log, [Record(0, 1, b"k", b"v")], base_sequence=0, producer_id=1, producer_epoch=0, is_transactional=True)
        data.close()
        for snapshot in (data.path / "t-0").glob("*.snapshot"):
            snapshot.unlink()
        active = data.path / "t-0" / f"{16 if rolled else 0:020d}.log"
        with active.open("ab") as file:
            file.write(bytes(500))
        for _ in range(2):
            assert log_bounds(request_directory(data), read_committed=True) == (0, 16, 15)

    def test_a_directory_that_cannot_be_listed_is_an_error_of_the_pipeline(
        self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """KafkaStorageError was raised, and a query that was under way took its records for lost."""
        fill(data.log("t"), 2)
        data.close()
        directory = request_directory(data)
        slices = plan(ReadRequest((OffsetRange(directory, 0, 10),)))
        active = data.path / "t-0" / f"{0:020d}.log"
        active.rename(active.with_suffix(".gone"))

        def refuse(_: str) -> list[str]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(segment_files, "names_in", refuse)
        options = ReadOptions(fail_on_data_loss=False)
        for work in (
            lambda: plan(ReadRequest((OffsetRange(directory, 0, 200),))),
            lambda: log_bounds(directory),
            lambda: first_offset_at_or_after(directory, NOW_MS, 0, 200),
            lambda: marked_below(directory.path, 0),
            lambda: list(read_slice(slices[0], Columns(("offset",)), options=options)),
        ):
            with pytest.raises(PipelineError, match="t-0 cannot be listed: Permission denied"):
                work()
        assert options.lost == []

    @pytest.mark.parametrize("name", [LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE])
    @pytest.mark.parametrize("is_directory", [False, True])
    def test_a_checkpoint_that_cannot_be_read_is_an_error_of_the_pipeline(
        self, data: DataDirectory, name: str, is_directory: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error of the log was raised, which callers of the pipeline do not expect."""
        monkeypatch.setattr(holes, "SAVE_PATIENCE_S", 0)
        data.log("t")
        data.close()
        first, second = build_batch([Record(0, NOW_MS, b"k", b"v")]), build_batch([Record(7, NOW_MS, b"k", b"v")])
        (data.path / "t-0" / f"{0:020d}.log").write_bytes(bytes(first) + bytes(second))
        if is_directory:
            (data.path / name).mkdir()
        else:
            (data.path / name).write_text("damaged")
        with pytest.raises(PipelineError, match=name):
            tidelog.scan(data.path, "t").read_all()

    def test_a_query_under_way_does_not_take_unreadable_metadata_for_a_deleted_topic(self, data: DataDirectory) -> None:
        fill(data.log("t"), 2)
        data.close()
        slices = plan(ReadRequest((OffsetRange(request_directory(data), 0, 10),)))
        (data.path / "t-0" / "partition.metadata").write_text("damaged")
        options = ReadOptions(fail_on_data_loss=False)
        with pytest.raises(PipelineError, match=r"partition\.metadata has no readable topic_id"):
            list(read_slice(slices[0], Columns(("offset",)), options=options))
        assert options.lost == []

    def test_a_log_without_segments_is_told_as_one(self, data: DataDirectory) -> None:
        """It was said to begin at the end of the wanted offsets."""
        fill(data.log("t"), 1)
        data.close()
        (data.path / "t-0" / f"{0:020d}.log").unlink()
        with pytest.raises(DataLossError, match="t-0: records from 2 to 4 are gone, the log has no segments"):
            plan(ReadRequest((OffsetRange(request_directory(data), 2, 5),)))

    def test_segments_that_cannot_be_opened_end_the_search(self, data: DataDirectory) -> None:
        fill(data.log("t"), 1)
        directory = request_directory(data)
        (data.path / "t-0" / f"{5:020d}.log").symlink_to("nowhere")
        with pytest.raises(PipelineError, match="its segments were deleted faster than they could be read"):
            log_bounds(directory)
        with pytest.raises(PipelineError, match="its segments were deleted faster than they could be listed"):
            plan(ReadRequest((OffsetRange(directory, 0, 200),)))
        with pytest.raises(PipelineError, match="its segments were deleted faster than they could be read"):
            first_offset_at_or_after(directory, NOW_MS * 2, 0, 200)
        data.close()
        shutil.rmtree(directory.path)
        with pytest.raises(PipelineError, match="was deleted"):
            log_bounds(directory)
        with pytest.raises(PipelineError, match="t-0"):
            plan(ReadRequest((OffsetRange(directory, 0, 200),)))

    def test_a_broker_that_is_not_there(self, data: DataDirectory) -> None:
        data.log("t")
        with pytest.raises(PipelineError, match=r"kafka.bootstrap.servers=127.0.0.1:1: cannot connect"):
            broker_ends("127.0.0.1:1", [request_directory(data)])
        with pytest.raises(PipelineError, match=r"kafka.bootstrap.servers=, : no bootstrap server is given"):
            broker_ends(", ", [request_directory(data)])

    def test_the_leader_of_each_partition_gives_its_end(
        self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One server was asked for all partitions, and in a cluster it led only some of them."""
        for partition in (0, 1):
            fill(data.log("t", partition), 20)
        monkeypatch.setattr(offsets, "Cluster", TwoLeaders)
        request = request_of(data, kafka_bootstrap_servers="any:1")
        assert [(wanted.directory.partition, wanted.end) for wanted in request.ranges] == [(0, 10), (1, 11)]


class TwoLeaders(Cluster):
    """A cluster in which broker N leads partition N of each topic, with a high watermark of 10 + N."""

    def __init__(self, servers: str, timeout_s: float, security: Security) -> None:
        self._timeout_s = timeout_s

    def leader(self, topic: str, partition: int) -> tuple[str, int]:
        return "broker", partition

    def client_for(self, address: tuple[str, int]) -> Any:
        return Leader(address[1])

    def close(self) -> None:
        """Do nothing: no connection is open."""


class Leader:
    """A connection to a broker that leads one partition of each topic."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {ListOffsetsRequest.API_KEY: (1, 9)}

    def send(self, request: ListOffsetsRequest, response_type: type, version: int) -> ListOffsetsResponse:
        (topic,) = request.topics
        (asked,) = topic.partitions
        assert asked.partition_index == self._partition
        found = ListOffsetsPartitionResponse(partition_index=self._partition, offset=10 + self._partition)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[found])])


def request_directory(data: DataDirectory, topic: str = "t") -> Any:
    return find_partitions([str(data.path)], parse_options({"path": "/", "subscribe": topic}).choice)[0]


class TestOffsets:
    def test_given_offsets_bound_the_read(self, data: DataDirectory) -> None:
        fill(data.log("t"), 20)
        request = request_of(data, startingOffsets='{"t":{"0":7}}', endingOffsets='{"t":{"0":9}}')
        assert offsets_of(request) == [7, 8]
        request = request_of(data, startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":{"0":-1}}')
        assert len(offsets_of(request)) == 100

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ({"startingOffsets": '{"t":{"0":101}}'}, OffsetRangeError, "offset 101 of t-0 is beyond the end of"),
            ({"endingOffsets": '{"t":{"0":101}}'}, OffsetRangeError, "endingOffsets: offset 101 of t-0 is beyond"),
            ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":4}}'}, OffsetRangeError, "starts at 9"),
            ({"startingOffsets": '{"t":{"1":9}}'}, OptionError, "must name every partition: missing t-0, unknown"),
            ({"startingTimestamp": str(NOW_MS * 2)}, OffsetRangeError, "has no record at or after"),
        ],
    )  # fmt: skip
    def test_offsets_that_are_not_there(
        self, data: DataDirectory, given: dict[str, str], error: type[Exception], message: str
    ) -> None:
        fill(data.log("t"), 20)
        with pytest.raises(error, match=re.escape(message)):
            request_of(data, **given)

    def test_starting_offsets_below_the_log_start_are_data_loss(self, data: DataDirectory) -> None:
        fill(data.log("t"), 60)
        segments = list_segments(str(data.path / "t-0"))
        data.close()
        os.remove(segments[0].path)
        first = segments[1].base_offset
        given = {"startingOffsets": '{"t":{"0":3}}'}
        with pytest.raises(DataLossError, match=f"t-0 begins at {first}, records from 3 on are gone"):
            request_of(data, **given)
        assert offsets_of(request_of(data, **given, failOnDataLoss="false")) == list(range(first, 300))

    def test_segments_that_go_between_bounds_and_plan(self, data: DataDirectory) -> None:
        fill(data.log("t"), 60)
        lossless, lossy = request_of(data), request_of(data, failOnDataLoss="false")
        segments = list_segments(str(data.path / "t-0"))
        data.close()
        os.remove(segments[0].path)
        with pytest.raises(DataLossError, match="records from 0 to"):
            plan(lossless)
        assert offsets_of(lossy)[0] == segments[1].base_offset

    def test_read_committed_ends_at_the_open_transaction(self, data: DataDirectory) -> None:
        log = data.log("t")
        fill(log, 2)
        transaction = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        write(log, [Record(0, 1, b"k", b"v")], **transaction)
        fill(log, 2)
        assert offsets_of(request_of(data, kafka_isolation_level="read_committed")) == list(range(10))
        assert len(offsets_of(request_of(data))) == 21


class TestTimes:
    def test_the_first_offset_at_or_after_any_time_is_found(self, data: DataDirectory) -> None:
        log = data.log("t")
        times = [5, 9, 3, 9, 12, 1, 20, 20, 2, 30, 8, 40] * 12
        records = [Record(n, NOW_MS + (n // 12) * 10 + time, b"k", bytes(60)) for n, time in enumerate(times)]
        for at in range(0, len(records), 3):
            write(log, [r._replace(offset=r.offset - at) for r in records[at : at + 3]], compression=(at // 3) % 3)
        directory = request_directory(data)
        for time in range(NOW_MS - 1, NOW_MS + 170, 7):
            for start in (0, 50):
                expected = next((r.offset for r in records if r.timestamp >= time and start <= r.offset < 140), None)
                assert first_offset_at_or_after(directory, time, start, 140) == expected, time

    def test_records_from_one_time_to_another_are_read(self, data: DataDirectory) -> None:
        written = fill(data.log("t"), 40)
        low, high = written[33].timestamp, written[77].timestamp
        assert offsets_of(request_of(data, startingTimestamp=str(low), endingTimestamp=str(high))) == list(
            range(33, 77)
        )
        by_partition = {"startingOffsetsByTimestamp": json.dumps({"t": {"0": low}})}
        assert offsets_of(request_of(data, **by_partition))[0] == 33

    def test_times_of_records_that_were_cut_are_not_believed(self, data: DataDirectory) -> None:
        """The time index of the active segment still has their entries, according to which all records up to offset 54
        are early."""
        log = data.log("t")
        fill(log, 12)
        log.truncate_to(20)
        late = NOW_MS + 3_600_000
        write(log, [Record(0, late, b"k", b"v")])
        assert len(list_segments(str(data.path / "t-0"))) == 1
        for timestamp in (NOW_MS + 600_000, late):
            assert offsets_of(request_of(data, minTimestamp=str(timestamp))) == [20]
            directory = request_directory(data)
            assert first_offset_at_or_after(directory, timestamp, 0, 21) == 20

    def test_a_marker_counts_as_in_kafkas_answer(self, data: DataDirectory) -> None:
        """A time after the last record was an error, although the broker has an offset for it."""
        log = data.log("t")
        ids: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        write(log, [Record(0, NOW_MS - 5000, b"k", b"v")], **ids)
        end_transaction(log, 1, commit=True)
        found = log.fetch_offset_by_timestamp(NOW_MS - 1000)
        assert found is not None
        assert first_offset_at_or_after(request_directory(data), NOW_MS - 1000, 0, 2) == found.offset == 1
        assert offsets_of(request_of(data, startingTimestamp=str(NOW_MS - 1000))) == []

    def test_a_time_after_the_last_record_reads_nothing_or_ends_at_the_end(self, data: DataDirectory) -> None:
        fill(data.log("t"), 4)
        late = {"startingTimestamp": str(NOW_MS * 2), "startingOffsetsByTimestampStrategy": "latest"}
        assert offsets_of(request_of(data, **late)) == []
        assert len(offsets_of(request_of(data, endingTimestamp=str(NOW_MS * 2)))) == 20


class TestTasks:
    def test_min_partitions(self, data: DataDirectory) -> None:
        fill(data.log("t"), 40)
        for wanted in (1, 3, 7, 30):
            request = request_of(data, minPartitions=str(wanted))
            slices = plan(request)
            assert len(group(slices, request)) >= wanted
            assert offsets_of(request, slices) == list(range(200))

    def test_max_records_per_partition(self, data: DataDirectory) -> None:
        fill(data.log("t"), 40)
        request = request_of(data, maxRecordsPerPartition="30")
        tasks = group(plan(request), request)
        assert all(sum(p.end_offset - p.start_offset for p in task) <= 30 for task in tasks)
        assert offsets_of(request) == list(range(200))

    def test_small_segments_share_a_task(self, data: DataDirectory) -> None:
        fill(data.log("t"), 100)
        fill(data.log("t", 1), 3)
        request = request_of(data, bytesPerTask="10k")
        tasks = group(plan(request), request)
        assert len(plan(request)) > len(tasks) > 2
        assert all(len({piece.partition for piece in task}) == 1 for task in tasks)
        assert all(sum(piece.size_bytes for piece in task) <= 10 * 1024 for task in tasks)


class TestPruning:
    """Bytes are counted: a point query reads a small part of a log."""

    @pytest.fixture
    def large(self, tmp_path: Path) -> Iterator[DataDirectory]:
        directory = DataDirectory(
            tmp_path / "large", segment_bytes=1 << 20, index_interval_bytes=4096, index_keys="true"
        )
        log = directory.log("t")
        for number in range(600):
            records = [
                Record(i, NOW_MS + 1000 * number + i, b"key-%d" % (20 * number + i), bytes(500)) for i in range(20)
            ]
            write(log, records)
        yield directory
        directory.close()

    def size(self, data: DataDirectory) -> int:
        return sum(os.path.getsize(segment.path) for segment in list_segments(str(data.path / "t-0")))

    def test_a_range_of_times_reads_few_bytes(self, large: DataDirectory) -> None:
        when = NOW_MS + 1000 * 444
        request = request_of(large, startingTimestamp=str(when), endingTimestamp=str(when + 10))
        assert offsets_of(request) == list(range(444 * 20, 444 * 20 + 10))
        assert request.count.bytes_read < 0.02 * self.size(large), request.count  # 6 MB; of 10 GB it is far below 1 %

    def test_without_an_index_a_key_reads_the_whole_log(self, large: DataDirectory) -> None:
        request = request_of(large, key="key-4711")
        assert offsets_of(request) == [4711]
        assert request.count.bytes_read > self.size(large)

    def test_through_the_index_a_key_reads_few_bytes(self, large: DataDirectory) -> None:
        indexer = self.index(large)
        request = request_of(large, key="key-4711")
        assert offsets_of(request) == [4711]
        assert request.count.bytes_read < 0.02 * self.size(large), request.count
        assert offsets_of(request_of(large, key="nobody")) == []
        write(large.log("t"), [Record(0, 1, b"key-4711", b"again")])
        assert offsets_of(request_of(large, key="key-4711")) == [4711, 12_000], "what is not indexed yet is read"
        indexer.step()
        assert offsets_of(request_of(large, key="key-4711")) == [4711, 12_000], "nor what no checkpoint vouches for"
        indexer.checkpoint()
        assert offsets_of(request_of(large, key="key-4711")) == [4711, 12_000]

    def test_a_damaged_index_is_not_believed(self, large: DataDirectory) -> None:
        self.index(large)
        large.close()
        path = next((large.path / "t-0" / "keys").glob("*.keys"))
        content = path.read_bytes()
        path.write_bytes(content[:44] + b"\x00\x00\x00\x01" * ((len(content) - 44) // 4))
        assert offsets_of(request_of(large, key="key-4711")) == [4711]

    def index(self, data: DataDirectory) -> LogIndexer:
        log = data.log("t")
        indexer = LogIndexer(log)
        indexer.configure()
        while indexer.step():
            pass
        indexer.checkpoint()
        return indexer


def test_many_places_of_a_key_are_read_together(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.pipeline.plan import plan as planning

    monkeypatch.setattr(planning, "MAX_KEY_SPANS", 3)
    assert planning._spans([1, 2, 3, 10, 20, 40]) == [(1, 11), (20, 21), (40, 41)]
    assert planning._spans([]) == []


class TestListing:
    def test_a_swap_whose_broker_died_is_read_as_its_next_start_would(
        self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidelog.pipeline.files import segment_files

        monkeypatch.setattr(segment_files, "SWAP_PATIENCE_S", 0.0)
        fill(data.log("t"), 60)
        data.close()
        directory = str(data.path / "t-0")
        plain = list_segments(directory)
        merged = b"".join(Path(segment.path).read_bytes() for segment in plain[:2])
        swap = Path(plain[0].path + ".swap")
        swap.write_bytes(merged)
        cleaned = Path(plain[2].path + ".cleaned")
        cleaned.touch()
        assert list_segments(directory) == plain, "not all of it was renamed: the old segments stay"
        cleaned.unlink()
        os.remove(plain[0].path)
        assert [segment.path for segment in list_segments(directory)] == [str(swap), *(s.path for s in plain[2:])]
        assert offsets_of(request_of(data)) == list(range(300))

    def test_a_stale_index_is_not_believed(self, data: DataDirectory) -> None:
        fill(data.log("t"), 60)
        data.close()
        for segment in list_segments(str(data.path / "t-0")):
            index = Path(segment.sibling(".index"))
            content = bytearray(index.read_bytes())
            content[7::8] = bytes((byte + 1) % 256 for byte in content[7::8])
            index.write_bytes(content + bytes(64))
        for size in ("1", "700", "1g"):
            request = request_of(data, startingOffsets='{"t":{"0":17}}', bytesPerTask=size)
            assert offsets_of(request) == list(range(17, 300))

    def test_a_position_before_the_file_is_not_believed(self, data: DataDirectory) -> None:
        fill(data.log("t"), 60)
        data.close()
        for segment in list_segments(str(data.path / "t-0")):
            index = Path(segment.sibling(".index"))
            content = bytearray(index.read_bytes())
            content[4::8] = bytes(byte | 0x80 for byte in content[4::8])
            index.write_bytes(content)
        request = request_of(data, startingOffsets='{"t":{"0":17}}')
        assert offsets_of(request) == list(range(17, 300))


def test_unused_batches_are_no_records(data: DataDirectory) -> None:
    log = data.log("t")
    fill(log, 2)
    end_transaction(log, 1, commit=True)
    fill(log, 1)
    assert offsets_of(request_of(data)) == [*range(10), *range(11, 16)]
    assert build_batch([], BatchOptions(base_offset=0, last_offset_delta=3))


def test_a_stream_that_plans_again_walks_only_new_batches(data: DataDirectory) -> None:
    log = data.log("t")
    for number in range(40):
        transaction = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        write(log, [Record(0, 1, b"k", b"v" * 30)], **transaction)
        if number % 3:
            end_transaction(log, number - 1, commit=number % 2 == 0)
        bounds = log_bounds(request_directory(data), read_committed=True)
        assert (bounds.end, bounds.last_stable) == (log.log_end_offset, log.last_stable_offset)
    further, afresh = ReadCount(), ReadCount()
    log_bounds(request_directory(data), read_committed=True, count=further)
    last_stable._WALK_ENDS.clear()
    log_bounds(request_directory(data), read_committed=True, count=afresh)
    assert further.bytes_read < afresh.bytes_read - 1000


def test_a_log_that_was_cut_and_written_anew_is_walked_anew(data: DataDirectory) -> None:
    log = data.log("t")
    transaction = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    fill(log, 1)
    write(log, [Record(0, 1, b"k", b"v")], **transaction)
    assert log_bounds(request_directory(data), read_committed=True).last_stable == 5
    log.truncate_to(5)
    write(log, [Record(0, 2, b"k", b"w")], **{**transaction, "is_transactional": False})
    assert log_bounds(request_directory(data), read_committed=True).last_stable == 6
