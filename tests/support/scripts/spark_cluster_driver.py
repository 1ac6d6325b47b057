"""A driver whose executors are processes of their own (``local-cluster``): reads, and exports while one of them dies.

Arguments: a JSON object with ``work``, and ``data`` as a path relative to the directory the driver runs in. It prints a
JSON object with what it saw.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import tidelog.pipeline.jobs.exporting.commits as export_commits
from benchmarks.rivals.spark import SessionPlan, start_session
from tests.support.spark import java_options
from tidelog.pipeline.export.file import FilePlan, FileResult, write_file
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.jobs.source import LogSource

EXECUTORS = 2
MARKER = "KILLED_MARKER"


def where(number: int) -> str:
    """Return the directory a task runs in: each executor has one of its own."""
    return os.getcwd()


def write_and_die_once(plan: FilePlan) -> FileResult:
    """Write like an export's worker; the first one kills its executor, the JVM that its Python daemon belongs to."""
    written = write_file(plan)
    try:
        os.close(os.open(os.environ[MARKER], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return written
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    signal.pause()
    raise AssertionError("killed")


def main(arguments: dict[str, str]) -> None:
    """Run the driver's steps."""
    work = Path(arguments["work"])
    os.environ["SPARK_WORKER_DIR"] = str(work / "executors")
    settings = {
        "spark.master": f"local-cluster[{EXECUTORS},1,512]",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": java_options(),
        f"spark.executorEnv.{MARKER}": str(work / "killed"),
    }
    session = start_session(SessionPlan(work, java_options=java_options(), settings=settings))
    tasks = [Task(str(number), 1, number) for number in range(8)]
    places = set(run_tasks(session, tasks, where, Progress("where", quiet=True)))
    rows = session.read.format("tidelog").options(subscribe="t", minPartitions="6").load(arguments["data"]).collect()
    export_commits.write_file = write_and_die_once  # type: ignore[attr-defined]
    request = ExportRequest(LogSource((arguments["data"],)), str(work / "table"), file_bytes=4096)
    exported = export(session, request)
    seen = {
        "places": sorted(places),
        "offsets": sorted((row["partition"], row["offset"]) for row in rows),
        "exported": exported.rows,
        "files": exported.files,
    }
    session.stop()
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
