"""``export --follow`` into an object store, Iceberg or Delta, while its process, its workers, the broker or the store
are killed.

A producer writes all the time and a reader looks all the time. At every moment a partition's rows are its first
records, each once; at the end they are all that was acknowledged. Longer: ``make follow-kills FAULTS_EACH=10``.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("deltalake")

import confluent_kafka
import pyarrow as pa
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.topics import Topics
from tests.support.broker import TidelogProcess
from tests.support.moto_store import BUCKET, ENVIRONMENT, MotoServer
from tests.support.pipelines import NOW_MS
from tests.support.requirements import require_packages
from tidelog.pipeline.errors import RemoteError
from tidelog.pipeline.files.delta_address import DeltaAddress
from tidelog.pipeline.job_errors import JobError

require_packages("moto")

LIMIT_S = 240
"""No step of the export or of the reader takes so long, on a busy machine too; how many steps a fault takes has no
limit in time."""
UNSEEN = 10
"""So many commits, and looks after them, cannot leave the reader with the rows of before."""
NAME = "lake.events"
PARTITIONS = 2
EACH = int(os.environ.get("TIDELOG_FOLLOW_FAULTS", "1"))
"""Faults of each kind."""
SEED = int(os.environ.get("TIDELOG_FOLLOW_SEED", "20261122"))
MASTER = os.environ.get("TIDELOG_FOLLOW_MASTER", "none")
"""With Spark its Python workers are killed too."""
KINDS = ("driver", "broker", "store", *(("task",) if MASTER != "none" else ()))
Rows = dict[tuple[int, int], bytes]
"""Partition and offset -> value."""
Kind = tuple[list[str], Callable[[], list[str]], Callable[[], pa.Table]]
"""The export's arguments that name a table, a way to list its data files, and one to read it all."""


class Producing(threading.Thread):
    """An idempotent producer that writes until it is stopped; it keeps the acknowledged values by partition and
    offset."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="producer", daemon=True)
        self.acknowledged: Rows = {}
        self.stopped = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = confluent_kafka.Producer({**settings, "message.timeout.ms": LIMIT_S * 1000})

    def run(self) -> None:
        for number in itertools.count():
            if self.stopped.is_set():
                break
            value = b"%d" % number
            partition = number % PARTITIONS
            self._producer.produce("events", value, partition=partition, timestamp=NOW_MS, on_delivery=self._note)
            self._producer.poll(0)
            time.sleep(0.005)
        self._producer.flush(LIMIT_S)

    def _note(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        place, value = (message.partition(), message.offset()), message.value()
        assert error is None, error
        assert place not in self.acknowledged
        assert place[0] is not None
        assert place[1] is not None
        assert isinstance(value, bytes)
        self.acknowledged[place[0], place[1]] = value


class Files:
    """Rows of a table's data files. Files never change, so each is read once: to read all of them takes 12 s for each
    1,000 with nothing beside it, and the export makes thousands."""

    SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])

    def __init__(self, server: MotoServer, addresses: Callable[[], Iterable[str]]) -> None:
        self._store = server.store().client()
        self._addresses = addresses
        self._read: dict[str, pa.Table] = {}

    def look(self) -> pa.Table:
        """Read the rows of the files that the table has now."""
        found = [self.SCHEMA.empty_table()]
        for address in self._addresses():
            if address not in self._read:
                with self._store.open_input_file(address.removeprefix("s3://")) as file:
                    rows = parquet.read_table(file, columns=self.SCHEMA.names)
                self._read[address] = rows.cast(self.SCHEMA)
            found.append(self._read[address])
        return pa.concat_tables(found)


class Reading(threading.Thread):
    """A reader that reads the table all the time; it keeps the rows, and the errors it found. The store may be down."""

    def __init__(self, look: Callable[[], pa.Table]) -> None:
        super().__init__(name="reader", daemon=True)
        self.wrong = ""
        self.looks = self.failures = 0
        self.rows: Rows = {}
        self.stopped = threading.Event()
        self._look = look

    def run(self) -> None:
        while not self.stopped.is_set() and not self.wrong:
            try:
                found = self._look()
            except (OSError, NoSuchTableError, SQLAlchemyError, RemoteError, JobError):
                self.failures += 1
                time.sleep(0.02)
                continue
            self._judge(rows_of(found), found.num_rows)

    def _judge(self, rows: Rows, count: int) -> None:
        ends = [
            1 + max((offset for place, offset in rows if place == number), default=-1) for number in range(PARTITIONS)
        ]
        if not len(rows) == count == sum(ends):
            self.wrong = f"{count} rows of {len(rows)} records, where the offsets go up to {ends}"
        elif not rows.keys() >= self.rows.keys():
            self.wrong = f"{len(rows)} records after {len(self.rows)}"
        self.rows = rows
        self.looks += 1
        time.sleep(0.02)


def rows_of(found: pa.Table) -> Rows:
    """Map partition and offset of a table's rows to their values."""
    places = zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True)
    return dict(zip(places, found.column("value").to_pylist(), strict=True))


class Following:
    """The process of the export, which is started again after a kill, and the lines that it has printed."""

    def __init__(self, command: list[str]) -> None:
        self.commits = self.failures = 0
        self.lines: deque[str] = deque(maxlen=3)
        self._command = command
        self.start()

    def start(self) -> None:
        """Start the process."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._reading = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reading.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.lines.append(line)
                self.failures += "the next attempt is" in line
                self.commits += line.startswith("version ")

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()
        self._reading.join(LIMIT_S)

    def workers(self) -> list[int]:
        """List the Python workers below the process."""
        parents, found = [self.process.pid], list[int]()
        while parents:
            children = [int(one) for parent in parents for one in _children(parent)]
            found += [child for child in children if "pyspark" in _command_of(child) and "daemon" in _command_of(child)]
            parents = children
        return found[1:]  # the first is their parent


def _children(pid: int) -> list[str]:
    with suppress(OSError):
        return [
            child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
        ]
    return []


def _command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@contextmanager
def started(server: MotoServer) -> Iterator[None]:
    """A server that serves, and refuses connections at the end."""
    server.start()
    try:
        yield
    finally:
        server.stop()


@contextmanager
def stopped_at_end(*threads: Producing | Reading) -> Iterator[None]:
    try:
        yield
    finally:
        for thread in threads:
            thread.stopped.set()
            thread.join(LIMIT_S)


class Progress:
    """Steps of the export and of the reader while something is waited for: they count, not the time."""

    def __init__(self, follower: Following, reader: Reading) -> None:
        self._follower, self._reader = follower, reader
        self._rows, self._growths = -1, 0
        self._before = (0, 0)
        self._last: dict[str, tuple[int, float]] = {}

    def require(self, what: str) -> None:
        """Fail if a part has done nothing for a long time, or if the reader does not see the export's commits."""
        follower, reader = self._follower, self._reader
        now = (follower.commits, reader.looks)
        if len(reader.rows) != self._rows:
            self._rows, self._before = len(reader.rows), now
            self._growths += 1
        commits, looks = (count - before for count, before in zip(now, self._before, strict=True))
        assert min(commits, looks) < UNSEEN, f"no {what}: {commits} commits and {looks} looks after the last new row"
        self._require_steps("export", self._growths + follower.commits + follower.failures, what)
        self._require_steps("reader", reader.looks + reader.failures, what)

    def _require_steps(self, name: str, steps: int, what: str) -> None:
        before, since = self._last.get(name, (-1, 0.0))
        if steps != before:
            self._last[name] = steps, time.monotonic()
        else:
            assert time.monotonic() - since < LIMIT_S, (
                f"no {what}: the {name} has done nothing for long: {self._told()}"
            )

    def _told(self) -> str:
        follower, reader = self._follower, self._reader
        return (
            f"{follower.commits} commits, {follower.failures} failures; {reader.looks} looks, {reader.failures} "
            f"failures, {len(reader.rows)} rows; last lines of the export: {follower.lines}"
        )


class Scene:
    """Everything that runs, and the faults."""

    def __init__(self, broker: TidelogProcess, server: MotoServer, follower: Following, reader: Reading) -> None:
        self.broker, self.server, self.follower, self.reader = broker, server, follower, reader

    def do(self, fault: str, chance: random.Random) -> None:
        """Make one fault happen, at a random moment after the table has grown."""
        seen = len(self.reader.rows)
        self.wait_for(lambda: len(self.reader.rows) > seen, f"growth before the {fault} goes")
        time.sleep(chance.random() / 5)
        getattr(self, f"_{fault}")()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; fail when the reader has found something wrong, or when nothing moves."""
        progress = Progress(self.follower, self.reader)
        while not condition():
            assert not self.reader.wrong, self.reader.wrong
            progress.require(what)
            time.sleep(0.005)

    def _driver(self) -> None:
        self.follower.kill()
        self.follower.start()

    def _broker(self) -> None:
        self.broker.kill()
        self.broker.restart()

    def _store(self) -> None:
        failures = self.follower.failures
        self.server.stop()
        self.wait_for(lambda: self.follower.failures > failures, "failure without a store")
        self.server.start()

    def _task(self) -> None:
        self.wait_for(lambda: bool(self.follower.workers()), "worker")
        for pid in self.follower.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def iceberg(work: Path, server: MotoServer) -> Iterator[Kind]:
    """An Iceberg table of a catalog in a file."""
    uri, warehouse = f"sqlite:///{work / 'catalog.db'}", f"s3://{BUCKET}/{work.name}"
    properties = dict(server.store().properties)
    options = [part for name, value in properties.items() for part in ("--catalog-property", f"{name}={value}")]
    catalog = SqlCatalog("tidelog", uri=uri, warehouse=warehouse, **properties)
    try:
        yield (
            [NAME, "--catalog", uri, "--warehouse", warehouse, *options],
            lambda: [task.file.file_path for task in catalog.load_table(NAME).scan().plan_files()],
            lambda: catalog.load_table(NAME).scan().to_arrow(),
        )
    finally:
        catalog.close()


@contextmanager
def delta(work: Path, server: MotoServer) -> Iterator[Kind]:
    """A Delta table."""
    address = server.store().address(f"{work.name}/events")
    yield (
        ["--format", "delta", address],
        lambda: DeltaAddress.of(address).open().file_uris(),
        lambda: DeltaAddress.of(address).open().to_pyarrow_table(),
    )


@pytest.mark.parametrize("table", [iceberg, delta])
def test_each_record_is_in_the_table_once_whatever_is_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: Callable[[Path, MotoServer], AbstractContextManager[Kind]],
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    chance, server = random.Random(SEED), MotoServer()
    faults = list(KINDS) * EACH
    chance.shuffle(faults)
    with (
        closing(server),
        TidelogProcess(tmp_path / "broker") as broker,
        started(server),
        table(tmp_path, server) as (arguments, addresses, read_all),
    ):
        Topics(broker.bootstrap).create("events", PARTITIONS)
        command = [sys.executable, "-m", "tidelog", "pipeline", "export", "--path", str(broker.data_directory)]
        command += ["--topic", "events", *arguments]
        command += ["--master", MASTER, "--quiet", "--follow", "--interval", "0.2", "--file-bytes", "20000"]
        producer, reader = Producing(broker.bootstrap), Reading(Files(server, addresses).look)
        follower = Following([*command, "--commit-files", "2"])
        try:
            with stopped_at_end(reader):
                with stopped_at_end(producer):
                    producer.start()
                    reader.start()
                    scene = Scene(broker, server, follower, reader)
                    for fault in faults:
                        scene.do(fault, chance)
                total = len(producer.acknowledged)
                scene.wait_for(lambda: len(reader.rows) >= total, "whole table")
            assert reader.rows == rows_of(read_all()) == producer.acknowledged
            follower.process.send_signal(signal.SIGTERM)
            assert follower.process.wait(LIMIT_S) == 0
        finally:
            follower.kill()
