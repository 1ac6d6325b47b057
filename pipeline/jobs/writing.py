"""The writer of replay and backfill: writes rows to a topic in transactions, each with its position in the source.

    rows -> record batches, staged      (tidelog.pipeline.sink.rows)
    one transaction: the batches, and the last row's number as an offset of a group   (tidelog.pipeline.sink.commit)

The transactional id and the group are ``tidelog-spark-<writer>``, where ``<writer>`` names the job, its ``--name`` and
the source: a partition or a file. A writer reads a range of its source in order, and numbers its rows. After a run was
killed, the next one continues after the last committed number, so a reader of committed records sees each row once. One
run per writer at a time. The group's offset expires with the broker's ``offsets.retention.minutes`` (7 days): a run
that is repeated later than that would write all rows again.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.client import ClientError, parse_bootstrap
from tidelog.client.cluster import GROUP, TRANSACTION, Cluster, Trouble, ask, is_passing, raise_for_code
from tidelog.client.connection import PLAIN
from tidelog.client.security import Security
from tidelog.pipeline.job_errors import BadRequestError, JobError
from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.commit import Publication, publish
from tidelog.pipeline.sink.rows import BatchBuilder
from tidelog.pipeline.sink.staging import StagingFile, TaskIdentity, remove_files
from tidelog.pipeline.sink.task import PartitionCounts
from tidelog.protocol.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

if TYPE_CHECKING:
    import pyarrow as pa

#: Limits of one transaction. 100,000 records of 100 bytes are about 10 MB. Each task has several copies of a
#: transaction's bytes in memory.
CHUNK_ROWS = 100_000
CHUNK_BYTES = 64 * 1024 * 1024
_INIT, _FETCH = 4, 7
_NAME = re.compile(r"[A-Za-z0-9._-]{1,60}")
_NOTE = "rows from {} on"
_NOTED = re.compile(r"rows from (\d+) on")
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_PATIENCE_S = 30.0
_RETRY_S = 0.2
#: Transactions per second under a limited rate, unless one would be over the limits above, or have less than one row.
_CHUNKS_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class Target:
    """Target of the rows: a topic of the brokers at ``bootstrap``.

    ``codec``: Kafka's number of the compression. ``rate``: records per second; None: no limit.
    """

    bootstrap: str
    topic: str
    codec: int = 0
    rate: float | None = None
    security: Security = field(default=PLAIN, repr=False, compare=False, kw_only=True)

    @property
    def chunk_rows(self) -> int:
        """Limit of the rows in one transaction."""
        return CHUNK_ROWS if self.rate is None else max(1, int(min(CHUNK_ROWS, self.rate / _CHUNKS_PER_SECOND)))

    def share(self, tasks: int) -> Target:
        """Return the target for one of ``tasks`` that run at the same time, with its share of the rate."""
        rate = None if self.rate is None else self.rate / max(tasks, 1)
        return replace(self, rate=rate)


def check_names(target: Target, name: str) -> None:
    """Raise BadRequestError for an invalid topic name, and for a name that cannot be part of a transactional id and a
    file name.
    """
    if not _TOPIC.fullmatch(target.topic):
        raise BadRequestError(
            f"--to {target.topic}: expected a topic's name: up to 249 letters, digits, dots, dashes, underscores"
        )
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"--name {name}: expected up to 60 letters, digits, dots, dashes, underscores; by default it is the topic"
        )


def check_addresses(bootstrap: str) -> None:
    """Raise BadRequestError for an invalid address of a broker."""
    try:
        for server in bootstrap.split(","):
            parse_bootstrap(server.strip())
    except ClientError as error:
        raise BadRequestError(str(error)) from error


def check_broker(target: Target) -> None:
    """Raise BadRequestError for an invalid address, JobError when no broker answers there."""
    check_addresses(target.bootstrap)
    try:
        Cluster(target.bootstrap, _PATIENCE_S, target.security).close()
    except (ClientError, KafkaError) as error:
        raise JobError(f"cannot write to topic {target.topic}: {error}") from error


def topic_exists(target: Target) -> bool:
    """Return whether the topic exists, without creating it. Raises JobError."""
    try:
        with Cluster(target.bootstrap, _PATIENCE_S, target.security) as cluster:
            cluster.leaders(target.topic)
    except UnknownTopicOrPartitionError:
        return False
    except LeaderNotAvailableError:
        return True
    except Trouble as error:
        raise JobError(f"cannot write to topic {target.topic}: {error}") from error
    return True


def partitions_of(target: Target) -> int:
    """Return the topic's number of partitions; the topic is created if the broker allows it. Raises PipelineError."""
    options = SinkOptions(target.bootstrap, Path(), topic=target.topic, security=target.security)
    return PartitionCounts(options).of(target.topic)


@dataclass(frozen=True, slots=True)
class Written:
    """The rows that a writer has committed: all from number ``first`` to ``last``, which is -1 for none. ``first`` is
    None if the group's metadata does not have it."""

    last: int = -1
    first: int | None = None


def read_written(target: Target, writer: str) -> Written:
    """Read which rows a writer has committed to the target's brokers. This ends the open transaction of a killed run.

    Raises JobError; BadRequestError when the writer has written to another topic.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with Cluster(target.bootstrap, _PATIENCE_S, target.security) as cluster:
                return _read_committed(cluster, target.topic, Publication(writer, 0, ()).name)
        except Trouble as error:
            if not is_passing(error) or time.monotonic() > deadline:
                raise JobError(f"{target.bootstrap}: {error}") from error
            time.sleep(_RETRY_S)


class Pace:
    """A limit of the rate of writing, in rows per second; None: no limit."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._rows = 0

    def wait_after(self, rows: int) -> None:
        """Add ``rows`` to the rows written so far, and wait until their average rate is below the limit."""
        self._rows += rows
        if self._rate is not None:
            ahead = self._rows / self._rate - (self._clock() - self._began)
            if ahead > 0:
                self._sleep(ahead)


class TopicWriter:
    """Writer of one source's rows, a context manager. One thread."""

    def __init__(self, target: Target, writer: str, *, first_partition: int = 0) -> None:
        """``writer`` is the name in the transactional id. ``first_partition``: the first one for rows without key."""
        self._target = target
        self._writer = writer
        self._first_partition = first_partition
        self._note = ""
        self._keyless_bytes: dict[str, int] = {}
        self._stack = ExitStack()
        self._pace = Pace(target.rate)

    def __enter__(self) -> Self:
        staging = Path(self._stack.enter_context(TemporaryDirectory(prefix="tidelog-")))
        target = self._target
        self._options = SinkOptions(
            target.bootstrap, staging, topic=target.topic, codec=target.codec, security=target.security
        )
        self._counts = PartitionCounts(self._options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin(self, first: int) -> int:
        """Return the number of the first row to write, for a source whose rows begin with number ``first``.

        This ends the open transaction of a killed run. Raises JobError; BadRequestError when the writer has written to
        another topic.
        """
        written = read_written(self._target, self._writer)
        if written.last < 0 or first > written.last + 1:  # no row yet, or a gap before ``first``
            self._note = _NOTE.format(first)
            return first
        self._note = "" if written.first is None else _NOTE.format(written.first)
        return written.last + 1

    def write(self, rows: Iterable[pa.RecordBatch], number: int) -> None:
        """Write rows of one schema in one transaction; ``number`` is the number of the last row. Raises
        PipelineError."""
        batches = list(rows)
        names = batches[0].schema.names if batches else []
        task = TaskIdentity(self._writer, number, self._first_partition, 0)
        builder = BatchBuilder(
            options=self._options,
            columns={name: names.index(name) for name in ("key", "value", "partition", "headers", "timestamp")
                     if name in names},
            partitions_of=self._counts.of,
            first=self._first_partition,
            keyless_bytes=self._keyless_bytes,
        )  # fmt: skip
        with StagingFile(self._options.staging, task) as file:
            for batch in builder.batches(batches):
                file.append(batch.topic, batch.partition, batch.data, batch.records)
            staged = file.finish()
        publish(self._options, Publication(self._writer, number, (staged,), note=self._note))
        remove_files([staged])
        self._pace.wait_after(sum(batch.num_rows for batch in batches))


def _read_committed(cluster: Cluster, topic: str, name: str) -> Written:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    begun = ask(cluster.coordinator(name, TRANSACTION), request, InitProducerIdResponse, _INIT)
    raise_for_code(begun.error_code, f"InitProducerId of {name}")
    wanted = OffsetFetchRequest(group_id=name, topics=None, require_stable=True)
    answer = ask(cluster.coordinator(name, GROUP), wanted, OffsetFetchResponse, _FETCH)
    raise_for_code(answer.error_code, f"OffsetFetch of {name}")
    return written_of(name, topic, answer)


def written_of(name: str, topic: str, answer: OffsetFetchResponse) -> Written:
    """Return the rows that the group ``name`` has committed. Raises KafkaError; BadRequestError for another topic."""
    written = Written()
    topics = tuple(entry.name for entry in answer.topics)
    for partition in (partition for entry in answer.topics for partition in entry.partitions):
        raise_for_code(partition.error_code, f"OffsetFetch of {name}")
        if partition.committed_offset > written.last:
            noted = _NOTED.fullmatch(partition.metadata or "")
            written = Written(partition.committed_offset, int(noted[1]) if noted else None)
    if written.last >= 0 and topic not in topics:
        raise BadRequestError(
            f"--to {topic}: under this --name rows were written to {', '.join(topics)} (group {name}), and would not "
            "be written again here: expected that topic, or another --name"
        )
    return written


class Chunks:
    """Divides rows into chunks of one transaction each, with at most ``rows`` rows and ``size`` bytes. A single row may
    be larger."""

    def __init__(self, rows: int, size: int = CHUNK_BYTES) -> None:
        self._wanted = rows
        self._size = size
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterable[list[pa.RecordBatch]]:
        """Yield the chunks that ``batch`` completes."""
        while batch.num_rows:
            part = batch.slice(0, self._count_fitting(batch))
            batch = batch.slice(part.num_rows)
            if part.num_rows:
                self._held.append(part)
                self._rows += part.num_rows
                self._bytes += part.nbytes
            if batch.num_rows or self._rows == self._wanted:
                yield self.rest()

    def _count_fitting(self, batch: pa.RecordBatch) -> int:
        """Return the number of the batch's first rows that the chunk has room for; at least one if it is empty."""
        left = self._size - self._bytes
        rows: int = min(batch.num_rows, self._wanted - self._rows)
        if batch.slice(0, rows).nbytes <= left:
            return rows
        fitting: int = bisect_right(range(1, rows), left, key=lambda count: batch.slice(0, count).nbytes)
        return fitting if self._held else max(fitting, 1)

    def rest(self) -> list[pa.RecordBatch]:
        """Remove and return the rows that do not fill a chunk yet."""
        held, self._held = self._held, []
        self._rows = self._bytes = 0
        return held
