"""``tidelog pipeline``: output and exit codes of each job, in this process, without Spark."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.kafka_directories import KafkaDirectory
from tests.support.pipelines import TOPIC_ID, DataDirectory, fill
from tidelog.broker.controller.topics import creation_records
from tidelog.broker.metadata.image import TopicImage, single_replica_states
from tidelog.broker.startup import build_controller
from tidelog.cli import main
from tidelog.commands import pipeline as pipeline_command
from tidelog.log.config import LogConfig
from tidelog.log.directories.names import METADATA_DIRECTORY
from tidelog.log.files.checkpoints import REPLICATION_OFFSET_FILE, write_clean_shutdown, write_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.pipeline.jobs.offline_logs import LOCK_FILE
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.replay import ReplayRequest, ReplayResult
from tidelog.pipeline.plan.request import batch_request
from tidelog.protocol.metadata_records.records import PartitionRecord, TopicRecord

SMALL = ["--config", "segment.bytes=4096", "--config", "index.interval.bytes=200"]
JOBS = ("export", "audit", "index", "compact", "replay", "backfill")


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    fill(directory.log("orders"), 100)
    directory.close()
    return directory


def run(data: DataDirectory, job: str, *words: str) -> int:
    return main(["pipeline", job, "--path", str(data.path), "--master", "none", "--quiet", *words])


def test_export_tells_rows_files_and_how_far_it_is_complete(
    data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(tmp_path / "table")
    assert run(data, "export", table, "--file-bytes", "10k") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{table} version 1: 500 rows in ")
    assert lines[1] == "orders-0 complete through offset 499, 2023-11-14T23:52:20.004+00:00"
    assert run(data, "export", table) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{table} version 1: nothing new"


def test_export_says_whether_a_day_is_complete(
    data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(tmp_path / "table")
    assert run(data, "export", table, "--complete-before", "2023-11-15") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "complete before 2023-11-15T00:00:00.000+00:00: yes"
    assert run(data, "export", table, "--complete-before", "2123-11-15") == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "complete before 2123-11-15T00:00:00.000+00:00: no, orders-0 may get earlier records"
    )
    assert run(data, "export", table, "--complete-before", "9" * 20) == 1
    assert "complete before 99999999999999999999 ms: no, orders-0" in capsys.readouterr().out


def test_jobs_tell_programs_in_json(data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(tmp_path / "table")
    assert run(data, "export", table, "--complete-before", "2123-11-15", "--json") == 1
    exported = json.loads(capsys.readouterr().out)
    assert (exported["table"], exported["version"], exported["rows"]) == (table, 1, 500)
    assert [one["complete_before_offset"] for one in exported["partitions"]] == [500]
    assert exported["incomplete"] == ["orders-0"]
    assert run(data, "audit", "--json") == 0
    assert json.loads(capsys.readouterr().out)["totals"]["records"] == 500
    assert run(data, "index", "--config", "index.keys=true", "--json") == 0
    (indexed,) = json.loads(capsys.readouterr().out)
    assert (indexed["name"], indexed["key_entries"]) == ("orders-0", 500)
    assert run(data, "export", table, "--follow", "--json") == 2
    assert "--json: expected it without --follow" in capsys.readouterr().err


def test_the_command_exports_to_iceberg(
    data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog, warehouse = f"sqlite:///{tmp_path / 'catalog.db'}", str(tmp_path / "warehouse")
    words = ["lake.orders", "--catalog", catalog, "--warehouse", warehouse]
    assert run(data, "export", *words) == 0
    assert capsys.readouterr().out.startswith("lake.orders version 1: 500 rows in 1 files")
    assert run(data, "export", "orders", "--catalog", catalog) == 2
    assert capsys.readouterr().err == "tidelog pipeline export: Iceberg table orders: expected NAMESPACE.TABLE\n"


def test_the_command_exports_to_delta(data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for expected in ("version 1: 500 rows in 1 files", "version 1: nothing new"):
        assert run(data, "export", str(tmp_path / "table"), "--format", "delta") == 0
        assert expected in capsys.readouterr().out
    assert run(data, "export", "a.b", "--format", "delta", "--catalog", "x") == 2
    assert "--format delta: expected it without --catalog" in capsys.readouterr().err


def test_a_catalog_has_properties_and_a_name(data: DataDirectory, tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    given = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'c.db'}", "warehouse": f"file://{tmp_path / 'warehouse'}"}
    words = [word for key, value in given.items() for word in ("--catalog-property", f"{key}={value}")]
    assert run(data, "export", "lake.orders", "--catalog", "prod", *words) == 0
    by_uri = ["--catalog", given["uri"], "--catalog-name", "prod"]
    assert run(data, "audit", "--table", "lake.orders", *by_uri) == 0
    assert run(data, "audit", "--table", "lake.orders", "--catalog", given["uri"]) == 2


@pytest.mark.usefixtures("imported_matplotlib")
def test_audit_is_0_when_all_is_in_order(
    data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report"
    assert run(data, "audit", "--report", str(report)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "everything is in order"
    assert json.loads((report / "report.json").read_text())["totals"]["records"] == 500


def test_audit_is_1_when_a_batch_is_damaged(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, "audit", "--quick") == 0
    path = data.path / "orders-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert run(data, "audit", "--quick") == 1
    out = capsys.readouterr().out
    assert f"orders-0: {path} at byte 0: wrong CRC in the batch of offset 0" in out
    assert out.splitlines()[-1] == "something is wrong"


def test_index_and_compact_take_the_configuration_of_the_brokers_topics(
    data: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = {
        "index.keys": "true",
        "cleanup.policy": "compact",
        "segment.bytes": "4096",
        "index.interval.bytes": "200",
    }
    controller = build_controller(
        LogManager([str(data.path)], OsFileSystem(), SystemTime(), LogConfig()), 1, SystemTime()
    )
    image = TopicImage("orders", TOPIC_ID, single_replica_states(1, 1), configs, False)
    controller.commit(creation_records(image, controller.level))
    controller.close()
    write_clean_shutdown(OsFileSystem(), str(data.path), 1)
    assert run(data, "index") == 0
    assert "500 key entries in 1 files" in capsys.readouterr().out
    assert run(data, "compact", "--dry-run") == 0
    assert "to 7 records, would go from" in capsys.readouterr().out
    assert run(data, "compact", "--topic", "orders") == 0
    assert "to 7 records, went from" in capsys.readouterr().out
    assert run(data, "audit") == 0


def test_configuration_can_be_given(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, "index", "--config", "index.keys=true", *SMALL) == 0
    assert "500 key entries" in capsys.readouterr().out
    assert run(data, "compact", *SMALL) == 0
    assert capsys.readouterr().out == "no compacted topic\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "t", "--topic", "nothing"], "topic nothing has no partition below"),
        (["export", ""], "TABLE is empty: expected a directory, or with --catalog"),
        (["export", "t", "--path", "a,"], "--path 'a,': expected directories, separated by commas"),
        (["export", "t", "--file-bytes", "much"], "--file-bytes=much: expected a size"),
        (["export", "t", "--complete-before", "noon"], "--complete-before noon: expected ms since 1970 or an ISO"),
        (["export", "t", "--assign", "{"], "--assign {: expected JSON"),
        (["export", "t", "--pattern", "("], "--pattern (: expected a regular expression"),
        (["export", "t", "--warehouse", "w"], "--warehouse w: expected --catalog URI with it"),
        (["export", "t", "--mode", "upsert"], "--mode upsert: expected --catalog or --format delta with it"),
        (["export", "t", "--follow", "--complete-before", "1"], "--complete-before: expected it without --follow"),
        (["export", "t", "--values", "registry"], "--registry URL and --values registry: expected both or none"),
        (["export", "t", "--metrics", "m"], "--metrics m: expected --follow with it"),
        (["export", "t", "--partition-by", "topic"], "--partition-by topic: expected --catalog with it"),
        (["export", "t", "--catalog-property", "type=rest"], "--catalog-property: expected --catalog with them"),
        (["export", "a.b", "--catalog", "x", "--catalog-property", "type"], "--catalog-property: expected KEY=VALUE"),
        (["audit", "--catalog", "sqlite://"], "--catalog sqlite://: expected --table NAMESPACE.TABLE with it"),
        (["audit", "--table", "a.b", "--catalog", "sqlite:////nowhere/x"], "Iceberg catalog sqlite:////nowhere/x: "),
        (["audit", "--master", "local[two]"], "--master local[two]: expected local[N], spark://HOST:PORT"),
        (["audit", "--master", "nobody"], "--master nobody: expected local[N], spark://HOST:PORT"),
        (["audit", "--table", "/nowhere"], "/nowhere is not an exported table"),
        (["index", "--config", "index.keys"], "--config: expected KEY=VALUE"),
        (["index", "--config", "no.such=1"], "--config no.such: not a topic configuration"),
        (["index", "--config", "index.keys=perhaps"], "index.keys"),
        (["compact", "--topic", "orders"], "orders: cleanup.policy is not compact"),
        (
            ["replay", "--to", "t", "--bootstrap", "b:1", "--from", "soon"],
            "--from soon: expected earliest, ms since 1970",
        ),
        (
            ["replay", "--to", "t", "--bootstrap", "b:1", "--from", '{"orders":{"0":501}}'],
            "--from: offset 501 of orders-0 is beyond the end of the log, 500",
        ),
        (
            ["replay", "--to", "t", "--bootstrap", "b:1", "--from", '{"orders":5}'],
            '--from {"orders":5}: expected JSON such as',
        ),
        (
            ["replay", "--to", "t", "--bootstrap", "b:1", "--until", '{"orders":{"0":501}}'],
            "--until: offset 501 of orders-0 is beyond",
        ),
        (
            [
                "replay",
                "--to",
                "t",
                "--bootstrap",
                "b:1",
                "--from",
                '{"orders":{"0":5}}',
                "--until",
                '{"orders":{"0":4}}',
            ],
            "the range starts at 5 (--from) and ends at 4 (--until)",
        ),
        (["export", "t", "--path", "/nowhere"], "--path /nowhere does not exist"),
        (["export", "t", "--bootstrap", "b:port"], "--bootstrap 'b:port': expected HOST:PORT"),
        (["replay", "--to", "a b", "--bootstrap", "b:1"], "--to a b: expected a topic's name"),
        (["replay", "--to", "..", "--bootstrap", "b:1"], "--to ..: expected a topic's name"),
        (["replay", "--to", "t", "--bootstrap", "b:1", "--rate", "0"], "--rate 0.0: expected more than 0"),
        (["replay", "--to", "t", "--bootstrap", "b:port"], "--bootstrap 'b:port': expected HOST:PORT"),
        (["replay", "--to", "t", "--bootstrap", "b:1", "--name", "a b"], "--name a b: expected up to 60"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    data: DataDirectory, words: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(data, words[0], *words[1:]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tidelog pipeline {words[0]}: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("job", ["replay", "backfill"])
def test_a_broker_that_is_down_is_reported_before_any_task(
    job: str, data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": [b"1"]}), path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    source = [str(path)] if job == "backfill" else ["--path", str(data.path)]
    assert main(["pipeline", job, *source, "--to", "t", "--bootstrap", address, "--master", "none"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tidelog pipeline {job}: cannot write to topic t: cannot connect to {address}")
    assert error.count("\n") == 1


def test_a_catalog_that_is_down_is_reported(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        catalog = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert run(data, "audit", "--table", "lake.orders", "--catalog", catalog) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tidelog pipeline audit: Iceberg catalog {catalog} cannot be reached: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("option", "hint"), [("--topics=a", " Did you mean '--topic'?"), ("--zebra", "")])
def test_an_unknown_option_is_reported_in_one_line(
    option: str, hint: str, data: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data, "audit", option) == 2
    (line,) = capsys.readouterr().err.splitlines()
    name = option.partition("=")[0]
    assert line.startswith(f"tidelog pipeline audit: no such option {name!r}")
    assert hint in line
    assert line.endswith("; see tidelog pipeline audit --help")


def test_backfill_refuses_names_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "backfill", str(tmp_path), "--to", "t", "--bootstrap", "b:1", "--name", "../a"]
    assert main([*words, "--master", "none"]) == 2
    assert "--name ../a: expected up to 60 letters" in capsys.readouterr().err


def test_backfill_refuses_files_before_it_asks_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"price": [1]}), path)
    words = ["pipeline", "backfill", str(path), "--to", "t", "--bootstrap", "b:1", "--master", "none"]
    assert main(words) == 2
    assert f"{path}: column price cannot be written" in capsys.readouterr().err


def test_a_directory_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    words = ["pipeline", "audit", "--path", str(tmp_path / "photos"), "--master", "none"]
    assert main(words) == 2
    assert "is not a Kafka data directory" in capsys.readouterr().err


def test_a_broker_that_runs_is_named(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    from tidelog.log.system.file_system import OsFileSystem

    lock = OsFileSystem().lock_file(str(data.path / LOCK_FILE))
    assert lock is not None
    assert run(data, "index") == 1
    lock.close()
    assert "stop it first" in capsys.readouterr().err


def test_damaged_metadata_are_an_error_not_a_crash(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    directory = data.path / METADATA_DIRECTORY
    directory.mkdir()
    (directory / f"{1:020d}-{1:010d}.checkpoint").touch()
    assert run(data, "index") == 1
    assert "has no header" in capsys.readouterr().err


def test_without_pyspark_the_package_is_named(
    data: DataDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for master in ("none", "local[1]"):
        assert main(["pipeline", "audit", "--path", str(data.path), "--master", master]) == 2
        assert "is not installed: pip install 'tidelog[spark]'" in capsys.readouterr().err


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyarrow", "pandas", "pyspark", "matplotlib", "pyiceberg", "sqlalchemy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from tidelog.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("job", JOBS)
def test_without_the_extra_one_line_names_the_package_to_install(job: str, data: DataDirectory) -> None:
    words = {"export": ["table"], "replay": ["--to", "t", "--bootstrap", "b:1"]}.get(job, [])
    source = ["rows.parquet", "--to", "t", "--bootstrap", "b:1"] if job == "backfill" else ["--path", str(data.path)]
    command = [sys.executable, "-c", WITHOUT_EXTRAS, "pipeline", job, *source, *words, "--master", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"tidelog pipeline {job}: pyarrow is not installed: pip install 'tidelog[spark]'\n"


def test_a_package_that_no_extra_brings_is_our_mistake(
    data: DataDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing(name: str) -> Any:
        def job(_: Any) -> int:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return job

    monkeypatch.setitem(pipeline_command.JOBS, "audit", importing("pyiceberg.catalog"))
    assert run(data, "audit") == 2
    assert "pyiceberg is not installed: pip install 'tidelog[iceberg]'" in capsys.readouterr().err
    monkeypatch.setitem(pipeline_command.JOBS, "audit", importing("pipeline.nothing"))
    with pytest.raises(ModuleNotFoundError):
        run(data, "audit")


@pytest.mark.parametrize("job", JOBS)
def test_an_object_store_is_offered_where_it_is_taken(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", job, "--help"]) == 0
    assert ("s3://" in capsys.readouterr().out) == (job in ("export", "audit", "replay"))


@pytest.mark.parametrize("job", JOBS)
def test_every_job_explains_itself(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", job, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: tidelog pipeline {job}")
    assert "--master URL" in out


def test_the_jobs_are_listed_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {job} " in out for job in JOBS)
    assert main(["pipeline", "exprot"]) == 2
    assert "exprot" in capsys.readouterr().err


def test_the_help_is_shown_without_loading_spark_or_arrow() -> None:
    code = (
        "import sys; from tidelog.cli import main; main(['pipeline', '--help']); "
        "print([n for n in ('pyspark', 'pyarrow', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def member(tmp_path: Path) -> DataDirectory:
    """Directory of a member of a cluster; the topic has two replicas, and its last 200 records are not committed."""
    directory = DataDirectory(tmp_path / "data")
    fill(directory.log("orders"), 100)
    directory.close()
    write_high_watermark(directory, 300)
    cluster = KafkaDirectory(tmp_path / "kafka")
    records = [
        TopicRecord(name="orders", topic_id=TOPIC_ID),
        PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1, 2]),
    ]
    cluster.add_metadata([(record, 0) for record in records])
    (cluster.path / METADATA_DIRECTORY).rename(directory.path / METADATA_DIRECTORY)
    return directory


def write_high_watermark(data: DataDirectory, offset: int) -> None:
    path = str(data.path / REPLICATION_OFFSET_FILE)
    write_offset_checkpoint(OsFileSystem(), path, {TopicPartition("orders", 0): offset})


def test_one_members_records_are_exported_once_they_are_known_to_be_committed(
    member: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records that a new leader truncated were in the table, too, and the next run ended with an error."""
    table = str(tmp_path / "table")
    assert run(member, "export", table) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("orders-0 complete through offset 299,")
    write_high_watermark(member, 310)
    assert run(member, "export", table) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("orders-0 complete through offset 309,")


def test_a_table_that_has_later_records_than_are_known_to_be_committed_is_no_error(
    member: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(tmp_path / "table")
    metadata = member.path / METADATA_DIRECTORY
    metadata.rename(tmp_path / "metadata")
    assert run(member, "export", table) == 0
    (tmp_path / "metadata").rename(metadata)
    assert run(member, "export", table) == 0
    assert "nothing new" in capsys.readouterr().out


def test_one_members_directory_without_high_watermarks_is_refused(
    member: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (member.path / REPLICATION_OFFSET_FILE).unlink()
    assert run(member, "export", str(tmp_path / "table")) == 2
    assert "expected that file beside them, or kafka.bootstrap.servers\n" in capsys.readouterr().err


def test_metadata_that_cannot_be_read_do_not_stop_an_export(
    member: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (member.path / METADATA_DIRECTORY / f"{1:020d}-{1:010d}.checkpoint").touch()
    assert run(member, "export", str(tmp_path / "table")) == 0
    printed = capsys.readouterr()
    assert printed.err.count(f"; all records in {member.path} count as committed") == 1
    assert printed.out.splitlines()[1].startswith("orders-0 complete through offset 499,")


def test_metadata_that_cannot_be_read_meanwhile_do_not_make_records_committed(member: DataDirectory) -> None:
    """A running member may remove a snapshot between the listing and the reading of the directory."""
    find = pipeline_command._finder_of_replicated(SimpleNamespace(path=str(member.path), job="export"))
    assert find() == {("orders", 0)}
    damaged = member.path / METADATA_DIRECTORY / f"{1:020d}-{1:010d}.checkpoint"
    damaged.touch()
    assert find() == {("orders", 0)}
    damaged.unlink()
    assert find() == {("orders", 0)}


def test_a_replay_of_one_members_directory_ends_at_the_known_high_watermark(
    member: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ReplayRequest] = []

    def note(_spark: None, request: ReplayRequest, _progress: Progress) -> list[ReplayResult]:
        asked.append(request)
        return []

    monkeypatch.setattr("tidelog.pipeline.jobs.replay.replay", note)
    assert run(member, "replay", "--to", "again", "--bootstrap", "localhost:1") == 0
    assert [wanted.end for wanted in batch_request(asked[0].source).ranges] == [300]
