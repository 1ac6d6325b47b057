"""Tasks of jobs: their results, errors, progress lines and rates, and the checks before Spark starts."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.job_errors import BadRequestError, JobError, MissingPackageError, SparkEndedError
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, require_arrow, require_running, run_tasks, start_spark, unfit_java
from tidelog.pipeline.jobs.writing import Chunks, Pace, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEGABYTE = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def double(number: int) -> int:
    if number == 13:
        raise PipelineError("13 is not doubled")
    if number == 14:
        raise BadRequestError("14 makes no sense")
    if number == 15:
        raise ZeroDivisionError
    return 2 * number


def tasks(*numbers: int) -> list[Task]:
    return [Task(f"task {number}", MEGABYTE, number) for number in numbers]


def test_results_come_in_the_order_of_the_tasks() -> None:
    assert run_tasks(None, tasks(3, 1, 2), double, Progress("job", quiet=True)) == [6, 2, 4]
    assert run_tasks(None, [], double, Progress("job", quiet=True)) == []


def test_an_error_of_a_task_gets_the_name_of_the_task_as_a_prefix() -> None:
    with pytest.raises(JobError, match=r"^task 13: 13 is not doubled$"):
        run_tasks(None, tasks(1, 13, 2), double, Progress("job", quiet=True))
    with pytest.raises(BadRequestError, match=r"^task 14: 14 makes no sense$"):
        run_tasks(None, tasks(14), double, Progress("job", quiet=True))


def test_an_unexpected_exception_of_a_task_is_raised_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        run_tasks(None, tasks(15), double, Progress("job", quiet=True))


def test_without_a_terminal_progress_is_a_line_every_few_seconds_and_one_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress("export", stream, clock)
    progress.begin(4, 4 * MEGABYTE)
    for done in (1, 2, 3, 4):
        clock.now += 3
        progress.update(done, done * MEGABYTE)
    progress.end()
    assert stream.getvalue().splitlines() == [
        "export: 2 of 4 tasks, 2.0 of 4.0 MB, 0.3 MB/s, 50 %, 0:00:06 left",
        "export: 4 of 4 tasks, 4.0 of 4.0 MB, 0.3 MB/s",
    ]


def test_on_a_terminal_the_progress_line_is_overwritten() -> None:
    clock, stream = Clock(), Terminal()
    progress = Progress("export", stream, clock)
    progress.begin(2, 2000)
    clock.now += 1
    progress.update(1, 1000)
    progress.end()
    assert stream.getvalue() == (
        "\rexport: 1 of 2 tasks, 1.0 of 2.0 kB, 0.0 MB/s, 50 %, 0:00:01 left"
        "\rexport: 2 of 2 tasks, 2.0 of 2.0 kB, 0.0 MB/s                    \n"
    )


def test_a_job_that_fails_does_not_report_all_tasks_as_done() -> None:
    stream = Terminal()
    clock = Clock()
    progress = Progress("job", stream, clock)

    def work(number: int) -> int:
        clock.now += 1
        return double(number)

    with pytest.raises(JobError):
        run_tasks(None, tasks(1, 13, 2), work, progress)
    assert stream.getvalue() == "\rjob: 1 of 3 tasks, 1.0 of 3.0 MB, 1.0 MB/s, 33 %, 0:00:02 left\n"


def java_that_prints(directory: Path, text: str) -> None:
    (directory / "bin").mkdir()
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "21" 2023-09-19', None),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11, expected 17 or newer"),
        ('java version "1.8.0_402"', "is Java 8, expected 17 or newer"),
        ("what?", "is Java of no known version, expected 17 or newer"),
    ],
)
def test_unfit_java_says_why_a_java_cannot_run_spark(
    printed: str, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that_prints(tmp_path, printed)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert unfit_java() == (None if why is None else f"{tmp_path}/bin/java {why}")


def test_unfit_java_says_where_no_java_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert unfit_java() == "Java 17 or newer is not installed"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert unfit_java() == f"JAVA_HOME={tmp_path} has no bin/java"


def test_quiet_shows_nothing() -> None:
    stream = Terminal()
    run_tasks(None, tasks(1), double, Progress("job", stream, quiet=True))
    assert stream.getvalue() == ""


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pyspark is not installed: pip install 'tidelog\[spark\]'"):
        start_spark("export", "local[1]")
    with pytest.raises(MissingPackageError, match=r"pyarrow is not installed: pip install 'tidelog\[spark\]'"):
        require_arrow()


def test_pace_waits_so_that_its_rate_is_kept() -> None:
    clock = Clock()
    pace = Pace(100.0, clock, clock.sleep)
    for _ in range(5):
        pace.wait_after(50)
    assert clock.now == pytest.approx(102.5)
    free = Pace(None, clock, clock.sleep)
    free.wait_after(10**9)
    assert clock.now == pytest.approx(102.5)


def test_tasks_share_the_rate_and_a_low_rate_makes_transactions_small() -> None:
    target = Target("b:1", "t", rate=1000.0)
    assert (target.chunk_rows, target.share(4).rate, target.share(4).chunk_rows) == (250, 250.0, 62)
    assert (Target("b:1", "t").chunk_rows, Target("b:1", "t").share(4).rate) == (100_000, None)
    assert Target("b:1", "t", rate=0.5).chunk_rows == 1
    assert Target("b:1", "t", rate=math.inf).chunk_rows == 100_000, "an infinite rate is no limit"


def test_chunks_have_a_fixed_number_of_rows_and_the_last_has_the_rest() -> None:
    import pyarrow as pa

    chunks = Chunks(4)
    given = [pa.RecordBatch.from_pydict({"n": numbers}) for numbers in ([1, 2, 3], [4, 5, 6, 7, 8, 9], [])]
    found = [
        [part.column("n").to_pylist() for part in chunk] for batch in given for chunk in chunks.add(batch)
    ]  # fmt: skip
    assert found == [[[1, 2, 3], [4]], [[5, 6, 7, 8]]]
    assert [part.column("n").to_pylist() for part in chunks.rest()] == [[9]]
    assert chunks.rest() == []


def test_chunks_have_a_limit_of_bytes_too() -> None:
    """A transaction of large rows would take gigabytes of memory."""
    import pyarrow as pa

    limit = 1_000_000
    values = [bytes(size) for size in (*[100_000] * 25, 3_000_000, 10, 10, 990_000, *[10] * 5)]
    chunks = Chunks(20, limit)
    found = []
    for batch in (values[:7], values[7:24], values[24:26], values[26:]):
        found += list(chunks.add(pa.RecordBatch.from_pydict({"value": pa.array(batch, pa.binary())})))
    found.append(chunks.rest())
    assert [value for chunk in found for part in chunk for value in part.column("value").to_pylist()] == values
    assert all(part.num_rows for chunk in found for part in chunk)
    assert [sum(part.num_rows for part in chunk) for chunk in found] == [9, 9, 7, 1, 8]
    sizes = [sum(part.nbytes for part in chunk) for chunk in found]
    assert [size <= limit for size in sizes] == [True, True, True, False, True]  # a single row may be larger


def test_a_session_of_spark_connect_is_refused() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(BadRequestError, match="cannot use a session of Spark Connect: expected one of Spark"):
        run_tasks(session, [Task("one", 1, 1)], double, Progress("test", quiet=True))


class EndedSession:
    """A session whose JVM has ended: each use raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - PySpark's name
        raise self._error


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JError("stopped")])
def test_a_session_whose_jvm_has_ended_is_an_error(error: Exception) -> None:
    require_running(None)
    with pytest.raises(SparkEndedError, match="Spark has ended: start the command again"):
        require_running(cast("SparkSession", EndedSession(error)))
