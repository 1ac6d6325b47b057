"""Apache Kafka's DumpLogSegments reads Tidelog's partition directories without an error.

``tidelog dump-log`` prints the same lines.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.apache_kafka import run_tool
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.logs import NOW_MS, LogBench, append, batch, marker, producer_batch
from tidelog.cli import main
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

pytestmark = pytest.mark.java

DUMP_CLASS = {KAFKA_3: "kafka.tools.DumpLogSegments", KAFKA_4: "org.apache.kafka.tools.DumpLogSegments"}


def write_log(directory: Path) -> UnifiedLog:
    """Write plain, compressed, idempotent and transactional batches over several segments of a log, and close it."""
    bench = LogBench(str(directory), segment_bytes=8000, index_interval_bytes=300)
    log = bench.open()
    for number in range(40):
        append(log, batch(3, timestamp=NOW_MS + number * 10))
        records = [Record(i, NOW_MS + number * 10 + i, b"k%d" % i, b"v" * 50) for i in range(4)]
        append(log, build_batch(records, BatchOptions(compression=number % 5)))
        append(log, producer_batch(number * 2, 2, producer_id=5, timestamp=NOW_MS + number))
        append(log, producer_batch(number, transactional=True))
        append(log, marker(7, commit=number % 3 == 0), AppendOrigin.COORDINATOR)
    log.close()
    return log


def dump(version: str, files: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    return run_tool(DUMP_CLASS[version], [*options, "--files", ",".join(files)], version=version, timeout_s=120)


@pytest.mark.parametrize("version", [KAFKA_4, KAFKA_3])
def test_dump_log_segments_has_no_complaint(tmp_path: Path, version: str) -> None:
    log = write_log(tmp_path)
    names = [name for name in sorted(os.listdir(log.directory)) if name[:20].isdigit()]
    assert {Path(name).suffix for name in names} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    deep = dump(version, [os.path.join(log.directory, name) for name in names], "--deep-iteration")
    assert deep.returncode == 0
    # What it does not like goes to standard error, where the logging library has its say too.
    for complaint in ("Mismatches", "out of order", "not found", "invalid bytes", "isvalid: false",
                      "Exception", "corrupt"):  # fmt: skip
        assert complaint.lower() not in (deep.stdout + deep.stderr).lower()
    # The tool of 4.3 reports the first record of any segment after the first as following -1; that of 3.9 does not.
    gaps = re.findall(r"(-?\d+) is followed by (\d+)", deep.stdout + deep.stderr)
    assert {before for before, _ in gaps} <= {"-1"}
    assert {int(after) for _, after in gaps} <= {segment.base_offset for segment in log.segments}
    assert not gaps or version == KAFKA_4
    assert deep.stdout.count("| offset:") == log.log_end_offset
    assert "producerId: 5 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: " in deep.stdout
    indices = [os.path.join(log.directory, name) for name in names if name.endswith((".index", ".timeindex"))]
    sanity = dump(version, indices, "--index-sanity-check")
    assert sanity.returncode == 0
    assert "exception" not in sanity.stderr.lower()
    assert sanity.stdout.count("passed sanity check") + sanity.stdout.count("is empty") == len(indices)


@pytest.mark.parametrize("options", [(), ("--deep-iteration",), ("--print-data-log",), ("--index-sanity-check",)])
def test_dump_log_prints_what_kafkas_tool_prints(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path)
    names = [os.path.join(log.directory, name) for name in sorted(os.listdir(log.directory)) if name[:20].isdigit()]
    other = tmp_path / "other" / f"{0:020d}.log"
    other.parent.mkdir()
    other.write_bytes(b"".join(kinds_of_batches()))
    printed = dump(KAFKA_4, [*names, str(other)], *options)
    assert printed.returncode == 0
    assert main(["dump-log", *options, *names, str(other)]) == 0
    assert capsys.readouterr().out == printed.stdout


def kinds_of_batches() -> list[bytes]:
    """Build message sets and a batch with keys and values that are null, with headers and a time of append."""
    found: list[bytes] = []
    for magic, compression in ((0, 0), (0, 1), (1, 0), (1, 1)):
        records = contents(3 * len(found))
        found.append(build_message_set(records, MessageSetOptions(magic=magic, compression=compression)))
    first = 3 * len(found)
    found.append(build_message_set(contents(first), MessageSetOptions(magic=1, log_append_time=NOW_MS + 5)))
    with_headers = [record._replace(headers=[("a", b"1"), ("b", None)]) for record in contents(first + 3)]
    options = BatchOptions(log_append_time=NOW_MS + 5, delete_horizon_ms=NOW_MS, partition_leader_epoch=4)
    return [*found, bytes(build_batch(with_headers, options))]


def contents(offset: int) -> list[Record]:
    """Build three records: a whole one, one without key, and one without value."""
    pairs = [("ключ".encode(), b"value"), (None, b"value"), (b"key", None)]
    return [Record(offset + number, NOW_MS + number, *pair) for number, pair in enumerate(pairs)]
