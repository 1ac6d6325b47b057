"""The export with ``--follow``: a run every interval, until it is stopped.

    run -> its lines if it committed, metrics -> wait for the rest of the interval -> run ...

The failure of a run is printed, and the next interval tries again: the store, the catalog or the broker may be down
for a while, or another export was faster. Errors that a user must resolve end the command: a topic that was created
again, a log that was truncated and written again, lost records, an invalid option, and the end of Spark. So does a
missing path, topic or package. Each run begins where the table's newest commit ends, so no offsets are kept between
runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX

from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.errors import (
    DataLossError,
    LogRewrittenError,
    OptionError,
    PipelineError,
    SelectionError,
    TopicRecreatedError,
)
from tidelog.pipeline.job_errors import BadRequestError, MissingPackageError, SparkEndedError
from tidelog.pipeline.jobs.exporting.request import ExportResult
from tidelog.protocol.errors import KafkaError

DECISIONS = (
    BadRequestError,
    DataLossError,
    LogRewrittenError,
    MissingPackageError,
    OptionError,
    SelectionError,
    SparkEndedError,
    TopicRecreatedError,
)
"""Errors that occur again in each run until a user changes something."""
_HELP = {
    "commits_total": "Runs that committed something.",
    "failures_total": "Runs that failed.",
    "rows_total": "Rows written.",
    "bytes_total": "Bytes of files written.",
    "dead_letters_total": "Damaged batches, records and values that became dead letters.",
    "lost_offsets_total": "Offsets that were gone before they could be exported.",
    "last_success_timestamp_seconds": "When the last run that succeeded read where the logs end.",
    "lag_records": "Offsets of the log that were not in the table after the last run that succeeded.",
}


@dataclass(slots=True)
class FollowMetrics:
    """Sums over the runs of one process, and the lag as of the last run that succeeded."""

    commits_total: int = 0
    failures_total: int = 0
    rows_total: int = 0
    bytes_total: int = 0
    dead_letters_total: int = 0
    lost_offsets_total: int = 0
    last_success_timestamp_seconds: float = 0.0
    lag_records: dict[tuple[str, int], int] = field(default_factory=dict)

    def note(self, result: ExportResult) -> None:
        """Add the result of a run that succeeded."""
        self.commits_total += result.committed
        self.rows_total += result.rows
        self.bytes_total += result.size
        self.dead_letters_total += result.dead_letters
        self.lost_offsets_total += sum(lost.end - lost.start for lost in result.lost)
        self.last_success_timestamp_seconds = result.looked_ms / 1000
        self.lag_records = result.lag()

    def text(self) -> str:
        """Write the metrics in Prometheus' text format."""
        lines = []
        for name, about in _HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP tidelog_export_{name} {about}", f"# TYPE tidelog_export_{name} {kind}"]
            value = getattr(self, name)
            samples = {(): value} if not isinstance(value, dict) else value
            lines += [
                f"tidelog_export_{name}{_labels(partition)} {number}" for partition, number in sorted(samples.items())
            ]
        return "\n".join(lines) + "\n"


def _labels(partition: tuple[str, int] | tuple[()]) -> str:
    return f'{{topic="{partition[0]}",partition="{partition[1]}"}}' if partition else ""


@dataclass(slots=True)
class Follower:
    """A loop over runs of an export.

    ``show`` is called with lines to print. ``metrics_path``: a file for Prometheus' textfile collector, replaced after
    each run that does not end the loop.
    """

    run: Callable[[], ExportResult]
    show: Callable[[str], None]
    interval_s: float
    metrics_path: str | None = None
    metrics: FollowMetrics = field(default_factory=FollowMetrics)
    clock: Callable[[], float] = time.monotonic
    _stops: SimpleQueue[None] = field(default_factory=SimpleQueue)

    def stop(self) -> None:
        """End after the run that is under way; for signal handlers and other threads.

        It uses a queue in place of an Event: a handler runs on the waiting thread, which may hold the Event's lock, so
        that ``set`` would hang.
        """
        self._stops.put(None)

    def follow(self) -> None:
        """Run until stopped. Raises one of DECISIONS."""
        left = 0.0
        while not self._is_stopped(left):
            began = self.clock()
            self.run_once()
            left = max(0.0, self.interval_s - (self.clock() - began))

    def _is_stopped(self, within_s: float) -> bool:
        try:
            self._stops.get(timeout=min(within_s, TIMEOUT_MAX))
        except Empty:
            return False
        return True

    def run_once(self) -> None:
        """Export new records, and print the result or the failure. Raises one of DECISIONS."""
        try:
            result = self.run()
        except DECISIONS:
            raise
        except (PipelineError, KafkaError, OSError) as error:
            self.metrics.failures_total += 1
            self.show(f"{error}; the next attempt is in {self.interval_s:g} s")
        else:
            self.metrics.note(result)
            for line in _lines(result) if result.committed else ():
                self.show(line)
        self._write_metrics()

    def _write_metrics(self) -> None:
        """Replace the file of metrics. A failure is printed, and does not end the loop."""
        if self.metrics_path is None:
            return
        try:
            OsFileSystem().replace_file(os.path.abspath(self.metrics_path), self.metrics.text().encode())
        except (KafkaError, OSError) as error:
            self.show(f"the metrics cannot be written: {error}")


def _lines(result: ExportResult) -> list[str]:
    """Write lines about a run: its commit, its dead letters, and the lost offsets."""
    lost = [
        f"{one.topic}-{one.partition} lost before export: offsets {one.start} to {one.end - 1}" for one in result.lost
    ]
    letters = [f"dead letters: {result.dead_letters}; see the dead-letter table"] if result.dead_letters else []
    return [_line(result), *letters, *lost]


def _line(result: ExportResult) -> str:
    return (
        f"version {result.manifest.version}: {result.rows:,} rows in {result.files} files, {result.size:,} bytes, "
        f"lag {sum(result.lag().values()):,} records"
    )
