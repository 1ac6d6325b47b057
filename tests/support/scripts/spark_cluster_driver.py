"""A driver whose executors are processes (``local-cluster``), each with a Python unpacked from an archive.

It reads, exports while an executor dies, and exports while speculation runs a slow task twice. Arguments: a JSON object
with ``work``, ``archive`` of a Python environment, and ``data`` as a path relative to the directory the driver runs in.
It prints a JSON object: where tasks ran, the offsets that it read, and the files of each export.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tidelog.pipeline.jobs.exporting.commits as export_commits
from benchmarks.rivals.spark import SessionPlan, start_session
from tests.support.spark import JAVA_OPTIONS
from tidelog.pipeline.export.file import FilePlan, FileResult, write_file
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.jobs.source import LogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS = 2
MARKERS = "MARKERS"
"""The environment variable with the directory of marker files, each of which is created when its step first happens."""
SLOW_S = 120
"""Seconds that a slow attempt waits for the attempt that should finish first."""
SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.3", "spark.speculation.minTaskRuntime": "500ms",
}  # fmt: skip


def where(number: int) -> tuple[str, str]:
    """Return the directory a task runs in, one for each executor, and the environment of its Python."""
    return os.getcwd(), sys.prefix


def is_first(name: str) -> bool:
    """Return whether this is the first call with this name in any process."""
    try:
        os.close(os.open(os.path.join(os.environ[MARKERS], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def write_and_die_once(plan: FilePlan) -> FileResult:
    """Write like an export's worker; the first one kills its executor, the JVM that its Python daemon belongs to."""
    written = write_file(plan)
    if not is_first("killed"):
        return written
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    signal.pause()
    raise AssertionError("killed")


def write_slowly_once(plan: FilePlan) -> FileResult:
    """Write like an export's worker; the first attempt of the first file waits within it for the second one's end."""
    if plan.start:
        return write_file(plan)
    if is_first("slow"):
        overtaken = Path(os.environ[MARKERS], "overtaken")
        deadline = time.monotonic() + SLOW_S
        while not overtaken.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return write_file(plan)
    written = write_file(plan)
    is_first("overtaken")
    return written


def start(arguments: dict[str, str]) -> SparkSession:
    """Start Spark with executors whose Python is unpacked from the archive."""
    work = Path(arguments["work"])
    os.environ["SPARK_WORKER_DIR"] = str(work / "executors")
    settings = {
        "spark.master": f"local-cluster[{EXECUTORS},1,512]",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.archives": f"{arguments['archive']}#environment",
        f"spark.executorEnv.{MARKERS}": str(work),
        **SPECULATION,
    }
    python = "./environment/bin/python"
    return start_session(SessionPlan(work, python=python, java_options=JAVA_OPTIONS, settings=settings))


def main(arguments: dict[str, str]) -> None:
    """Run tasks, read a topic, export twice, and print the results."""
    work, session = Path(arguments["work"]), start(arguments)
    tasks = [Task(str(number), 1, number) for number in range(8)]
    places = set(run_tasks(session, tasks, where, Progress("where", quiet=True)))
    rows = session.read.format("tidelog").options(subscribe="t", minPartitions="6").load(arguments["data"]).collect()
    seen: dict[str, Any] = {
        "places": sorted(places),
        "offsets": sorted((row["partition"], row["offset"]) for row in rows),
    }
    for name, worker in (("killed", write_and_die_once), ("speculated", write_slowly_once)):
        export_commits.write_file = worker  # type: ignore[attr-defined]
        table = str(work / f"table-{name}")
        seen[name] = export(session, ExportRequest(LogSource((arguments["data"],)), table, file_bytes=4096)).files
    session.stop()
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
