"""The runner of a job's tasks: on Spark as an RDD of plan rows, or in this process.

    plan row      task number, its plan (pickled)
    commit row    task number, whether it succeeded, the result or the class and line of the driver's error (pickled)

The RDD has one partition per task, so Spark distributes and retries tasks one by one. A DataFrame through
``mapInArrow`` would be planned and compiled for each job: 0.22 s of CPU in the JVM in place of 0.07, according to
``benchmarks/RESULTS.md``.

An error that a user can resolve (PipelineError, KafkaError, OSError) is returned as a commit row. The driver raises it
as a JobError, except that a BadRequestError stays one. Any other error is a defect, and fails the Spark job with its
stack trace. A worker's function must be defined in a module, because it is pickled by name.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.pipeline.errors import PipelineError, one_line
from tidelog.pipeline.job_errors import (
    SPARK_INSTALL,
    BadRequestError,
    JobError,
    MissingPackageError,
    SparkEndedError,
    missing_package_error,
)
from tidelog.pipeline.jobs.progress import Progress
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

CommitRow = tuple[int, bool, bytes]
"""Task number, whether the task succeeded, and its pickled result, or the pickled class and line of the driver's
error."""
_POLL_S = 0.5
_MASTER = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_LOST_WORKERS = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")
"""Texts in Spark's errors when the process of a task has died, which is not an error of the task itself."""
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
OLDEST_JAVA = 17
"""The oldest Java that can run Spark 4."""
JAVA_INSTALL = "apt-get install openjdk-17-jre-headless"
_SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}

Result = TypeVar("Result")
Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class Task:
    """One task: its name for messages, the bytes it will read, and the plan that the worker's function gets."""

    name: str
    size: int
    plan: Any


def run_tasks(
    spark: SparkSession | None, tasks: Sequence[Task], work: Callable[[Plan], Result], progress: Progress
) -> list[Result]:
    """Run the tasks; return the results of ``work(task.plan)``, in the order of ``tasks``. Raises JobError,
    BadRequestError.
    """
    progress.begin(len(tasks), sum(task.size for task in tasks))
    if not tasks:
        return []
    rows = _on_spark(spark, tasks, work, progress) if spark is not None else _run_here(tasks, work, progress)
    progress.end(succeeded=all(ok for _, ok, _ in rows))
    results: list[Result] = []
    for number, ok, result in sorted(rows, key=lambda row: row[0]):
        if not ok:
            kind, message = pickle.loads(result)
            raise kind(f"{tasks[number].name}: {message}")
        results.append(pickle.loads(result))
    return results


def do_task(number: int, plan: bytes, work: Callable[[Any], Any]) -> CommitRow:
    """Run one task and return its commit row."""
    try:
        return number, True, pickle.dumps(work(pickle.loads(plan)))
    except (PipelineError, KafkaError, OSError) as error:
        kind = BadRequestError if isinstance(error, BadRequestError) else JobError
        return number, False, pickle.dumps((kind, one_line(error)))


def _run_here(tasks: Sequence[Task], work: Callable[[Any], Any], progress: Progress) -> list[CommitRow]:
    rows, done = [], 0
    for number, task in enumerate(tasks):
        rows.append(do_task(number, pickle.dumps(task.plan), work))
        if not rows[-1][1]:
            break
        done += task.size
        progress.update(number + 1, done)
    return rows


def _on_spark(
    spark: SparkSession, tasks: Sequence[Task], work: Callable[[Any], Any], progress: Progress
) -> list[CommitRow]:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    rows = commit_rows(spark, tasks, work)
    group = f"tidelog-{uuid.uuid4()}"
    context = context_of(spark)
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(context, group, tasks, progress, done), name="job progress", daemon=True
    )
    context.setJobGroup(group, f"{len(tasks)} tasks", interruptOnCancel=True)
    watcher.start()
    try:
        return rows.collect()
    except (Py4JJavaError, PySparkException) as error:
        if any(lost in str(error) for lost in _LOST_WORKERS):
            raise JobError("a worker of Spark died during its task, in each of Spark's attempts") from error
        if (missed := _NO_MODULE.search(str(error))) is not None:
            raise JobError(
                f"a worker of Spark has no Python module {missed[1]}: install it there, or send an environment along "
                "(docs/spark-cluster.md)"
            ) from error
        raise
    finally:
        done.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def context_of(spark: SparkSession) -> SparkContext:
    """Return the session's SparkContext. Raises BadRequestError for a session of Spark Connect, which has none."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadRequestError(
            "a job cannot use a session of Spark Connect: expected one of SparkSession.builder.master(URL), or None to "
            "do the work in this process"
        )
    return spark.sparkContext


def require_running(spark: SparkSession | None) -> None:
    """Raise SparkEndedError if the session has ended: this process cannot start another one. Raises BadRequestError for
    a session of Spark Connect."""
    if spark is None:
        return
    from py4j.protocol import Py4JError

    try:
        context_of(spark).defaultParallelism  # noqa: B018 - asks the JVM
    except (ConnectionError, Py4JError) as error:
        raise SparkEndedError("Spark has ended: start the command again") from error


def commit_rows(spark: SparkSession, tasks: Sequence[Task], work: Callable[[Any], Any]) -> RDD[CommitRow]:
    """Build the RDD whose rows are commit rows; each task runs when its partition is computed."""
    plans = [(number, pickle.dumps(task.plan)) for number, task in enumerate(tasks)]

    def run(row: tuple[int, bytes]) -> CommitRow:
        return do_task(*row, work)

    return context_of(spark).parallelize(plans, len(plans)).map(run)


def _watch(context: Any, group: str, tasks: Sequence[Task], progress: Progress, done: threading.Event) -> None:
    """Show the number of tasks that Spark has completed, and the same share of the bytes, until ``done`` is set."""
    tracker = context.statusTracker()
    total = sum(task.size for task in tasks)
    while not done.wait(_POLL_S):
        stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in _stages(tracker, job)]
        completed = max((info.numCompletedTasks for info in stages), default=0)
        progress.update(completed, total * completed // len(tasks))


def _stages(tracker: Any, job: int) -> Iterator[Any]:
    info = tracker.getJobInfo(job)
    for stage in info.stageIds if info is not None else ():
        found = tracker.getStageInfo(stage)
        if found is not None:
            yield found


def require_arrow() -> None:
    """Raise MissingPackageError without pyarrow, which most jobs need."""
    if importlib.util.find_spec("pyarrow") is None:
        raise missing_package_error("pyarrow", SPARK_INSTALL)


def start_spark(job: str, master: str) -> SparkSession:
    """Start a session for a job, or return the existing one. The standard error of a JVM that it starts is discarded.

    Raises MissingPackageError without PySpark or a Java that runs it, BadRequestError for an invalid ``master``,
    JobError when Spark does not start.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise missing_package_error("pyspark", SPARK_INSTALL)
    if not _MASTER.fullmatch(master):
        raise BadRequestError(f"--master {master}: expected local[N], spark://HOST:PORT, k8s://URL, yarn, or none")
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run python3 of PATH
    builder = SparkSession.builder.master(master).appName(f"tidelog pipeline {job}")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    try:
        with _quiet_stderr():
            return builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError) as error:
        reason = _reason(error)
        if "master" in reason.lower():
            raise BadRequestError(f"--master {master}: {reason}") from error
        if (unfit := unfit_java()) is not None:
            raise MissingPackageError(f"Spark does not start: {unfit}: {JAVA_INSTALL}") from error
        raise JobError(f"Spark does not start on {master}: {reason}") from error


def unfit_java() -> str | None:
    """Explain why the Java of JAVA_HOME, else of PATH, cannot run Spark; None when it can."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    if shutil.which(java) is None:
        return f"JAVA_HOME={home} has no bin/java" if home else f"Java {OLDEST_JAVA} or newer is not installed"
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    if found is not None and int(found[1]) >= OLDEST_JAVA:
        return None
    return (
        f"{shutil.which(java)} is Java {found[1] if found else 'of no known version'}, expected {OLDEST_JAVA} or newer"
    )


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or of its Java exception's."""
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.getMessage())
    return text.strip().splitlines()[0]


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Redirect the standard error of processes that are started inside ``with`` to /dev/null, as long as they live."""
    sys.stderr.flush()
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
