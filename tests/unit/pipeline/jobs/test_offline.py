"""Index and compact in this process: the files are byte for byte those of the broker's own indexer and cleaner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import read_records
from tests.support.pipelines import NOW_MS, DataDirectory, fill
from tidelog.cleaner.engine.engine import ENGINE
from tidelog.cleaner.log_to_clean import measure_log
from tidelog.cleaner.round.cleaner import Cleaner
from tidelog.log.check import check_directory
from tidelog.log.files.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    REPLICATION_OFFSET_FILE,
    read_offset_checkpoint,
    write_clean_shutdown,
    write_offset_checkpoint,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.lookup import Query, find_newest
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.job_errors import BadRequestError, JobError
from tidelog.pipeline.jobs import compact as compact_job
from tidelog.pipeline.jobs import index as index_job
from tidelog.pipeline.jobs.compact import CompactRequest, CompactResult, compact
from tidelog.pipeline.jobs.index import IndexRequest, IndexResult, index
from tidelog.pipeline.jobs.offline_logs import LOCK_FILE, Configuration, OfflineLogs
from tidelog.pipeline.jobs.source import LogSource, choose
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import KafkaStorageError

SMALL = {"segment.bytes": "4096", "index.interval.bytes": "200"}
INDEXED = {
    **SMALL,
    "index.keys": "true",
    "index.tag.header": "kind",
    "index.keys.slots": "50",
    "index.keys.entries": "300",
    "index.tag.entries": "100",
}
COMPACTED = Configuration(overrides={**SMALL, "cleanup.policy": "compact"})
FS = OsFileSystem()


def run_index(data: DataDirectory, **fields: Any) -> list[IndexResult]:
    return index(None, IndexRequest(data.source(), Configuration(overrides=INDEXED), **fields))


def run_compact(data: DataDirectory, **fields: Any) -> list[CompactResult]:
    return compact(None, CompactRequest(data.source(), COMPACTED, now_ms=NOW_MS, **fields))


def contents(directory: Path, *suffixes: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name.endswith(suffixes)
    }


# ---- index


def test_indices_are_those_of_the_broker(data: DataDirectory, tmp_path: Path) -> None:
    fill(data.log("orders"), 120)
    fill(data.log("orders", 1), 3)
    data.close()
    other = tmp_path / "other"
    shutil.copytree(data.path, other)
    first, second = run_index(data)
    by_broker = DataDirectory(other, **{key.replace(".", "_"): value for key, value in INDEXED.items()})
    for partition in (0, 1):
        indexer = LogIndexer(by_broker.log("orders", partition))
        indexer.configure()
        while indexer.step(700):
            pass
        indexer.checkpoint()
    suffixes = (".keys", ".tags", "index-checkpoint", ".index", ".timeindex")
    by_broker.close()
    assert contents(data.path, *suffixes) == contents(other, *suffixes)
    assert (first.key_entries, first.key_files, first.tag_files, first.next_offset) == (600, 3, 6, 600)
    assert (second.name, second.key_entries) == ("orders-1", 15)


def test_records_are_found_through_the_built_indices(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 50)
    data.close()
    run_index(data)
    again = DataDirectory(data.path, **{key.replace(".", "_"): value for key, value in INDEXED.items()})
    log = again.log("orders")
    indexer = LogIndexer(log)
    indexer.configure()
    assert indexer.lag == 0
    found = [record.offset for record in find_newest(log, indexer, Query(key=b"key-3"))]
    assert found == sorted((record.offset for record in written if record.key == b"key-3"), reverse=True)
    again.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_offset_or_time_index_is_built_again_as_it_was(data: DataDirectory, suffix: str) -> None:
    fill(data.log("orders"), 120)
    data.close()
    write_clean_shutdown(FS, str(data.path), 3)
    before = contents(data.path, ".index", ".timeindex")
    for path in (data.path / "orders-0").glob(f"*{suffix}"):
        path.unlink()
    (result,) = run_index(data)
    assert result.rebuilt_segments == len([name for name in before if name.endswith(suffix)])
    assert contents(data.path, ".index", ".timeindex") == before


def test_a_second_run_has_nothing_to_do_and_rebuild_does_all_again(data: DataDirectory) -> None:
    fill(data.log("orders"), 60)
    data.close()
    (first,) = run_index(data)
    before = contents(data.path, ".keys", ".tags", ".index", ".timeindex")
    (second,) = run_index(data)
    (third,) = run_index(data, rebuild=True)
    assert (first.indexed_bytes > 0, second.indexed_bytes, third.indexed_bytes) == (True, 0, first.indexed_bytes)
    assert third.rebuilt_segments > 0
    assert contents(data.path, ".keys", ".tags", ".index", ".timeindex") == before
    assert index_job.report([second])[0].startswith("orders-0: nothing to do, 300 key entries in 2 files")
    assert "bytes indexed, offset and time indices of " in index_job.report([third])[0]


def test_topics_without_index_configuration_only_get_their_offset_and_time_index(data: DataDirectory) -> None:
    fill(data.log("orders"), 5)
    data.close()
    (result,) = index(None, IndexRequest(data.source()))
    assert (result.key_files, result.tag_files, result.indexed_bytes) == (0, 0, 0)


def test_the_clean_shutdown_marker_stays_unless_the_job_fails(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 5)
    data.close()
    write_clean_shutdown(FS, str(data.path), 7)
    marker = data.path / CLEAN_SHUTDOWN_FILE
    before = marker.read_bytes()
    run_index(data)
    assert marker.read_bytes() == before
    monkeypatch.setattr(index_job, "index_log", fail)
    with pytest.raises(JobError, match="orders-0: no luck"):
        run_index(data)
    assert not marker.exists()


def fail(_: Any) -> None:
    raise OSError("no luck")


def test_a_running_broker_is_left_alone(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    data.close()
    lock = FS.lock_file(str(data.path / LOCK_FILE))
    assert lock is not None
    with pytest.raises(JobError, match=r"a broker uses .* stop it first"):
        run_index(data)
    lock.close()
    with OfflineLogs(data.source().directories(), Configuration()) as logs:
        assert [plan.name for plan in logs.plan_logs()] == ["orders-0"]


def test_the_locks_are_released_if_a_marker_cannot_be_restored(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 1)
    data.close()
    (data.path / ".kafka_cleanshutdown").write_bytes(b"{}")
    logs = OfflineLogs(data.source().directories(), Configuration())
    monkeypatch.setattr(type(logs._file_system), "replace_file", lambda *_: fail(None))
    with pytest.raises(OSError, match="no luck"), logs:
        logs.begin_changes()
    lock = FS.lock_file(str(data.path / LOCK_FILE))
    assert lock is not None
    lock.close()


def test_an_impossible_configuration_is_reported(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    data.close()
    with pytest.raises(ConfigError, match=r"index\.keys\.entries"):
        index(None, IndexRequest(data.source(), Configuration(overrides={"index.keys.entries": "no"})))


# ---- compact


def test_segments_are_those_the_cleaner_writes(data: DataDirectory, tmp_path: Path) -> None:
    for partition in range(3):
        fill(data.log("orders", partition), 100 + 10 * partition, compression=partition)
    data.close()
    other = tmp_path / "other"
    shutil.copytree(data.path, other)
    results = run_compact(data)
    by_cleaner = DataDirectory(other, cleanup_policy="compact")
    for partition in range(3):
        log = by_cleaner.log("orders", partition)
        cleanable = measure_log(log, None, NOW_MS)
        stats = Cleaner(ENGINE).clean(cleanable, NOW_MS)
        assert (results[partition].records_after, results[partition].clean_below) == (
            stats.records_after,
            stats.end_offset,
        )
        environment = log.environment
        by_cleaner.close() if partition == 2 else None
        environment.deletions.run(everything=True)
    suffixes = (".log", ".index", ".timeindex")
    assert contents(data.path, *suffixes) == contents(other, *suffixes)
    for partition in range(3):
        assert check_directory(FS, str(data.path / f"orders-{partition}")) == []


def test_the_newest_record_of_each_key_stays(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 100)
    data.close()
    (result,) = run_compact(data)
    again = DataDirectory(data.path, cleanup_policy="compact")
    kept = {record.key: record for record in read_records(again.log("orders"))}
    again.close()
    newest = {record.key: record.value for record in written}
    assert {key: record.value for key, record in kept.items()} == newest
    assert result.records_after < result.records_before
    assert "to 7 records, went from" in compact_job.report([result], dry_run=False)[0]


@pytest.mark.parametrize("high_watermark", [0, 150, 300, 500])
def test_records_superseded_only_by_uncommitted_ones_stay(data: DataDirectory, high_watermark: int) -> None:
    written = fill(data.log("orders"), 100)
    data.close()
    watermarks = {TopicPartition("orders", 0): high_watermark, TopicPartition("other", 0): 9}
    write_offset_checkpoint(FS, str(data.path / REPLICATION_OFFSET_FILE), watermarks)
    (result,) = run_compact(data)
    assert result.clean_below <= high_watermark
    again = DataDirectory(data.path, cleanup_policy="compact")
    kept = {record.offset for record in read_records(again.log("orders"))}
    again.close()
    newest = {record.key: record.offset for record in written if record.offset < high_watermark}
    assert kept >= {*newest.values(), *range(high_watermark, 500)}
    assert (result.records_after < result.records_before) is (high_watermark > 0)


def test_a_log_that_the_high_watermarks_do_not_name_is_not_known_to_be_committed(data: DataDirectory) -> None:
    fill(data.log("orders"), 100)
    data.close()
    write_offset_checkpoint(FS, str(data.path / REPLICATION_OFFSET_FILE), {TopicPartition("other", 0): 500})
    before = contents(data.path, ".log")
    assert run_compact(data)[0].bytes_before == 0
    assert contents(data.path, ".log") == before


def test_the_clean_offset_is_saved_and_a_second_run_has_nothing_to_do(data: DataDirectory) -> None:
    fill(data.log("orders"), 100)
    data.close()
    (first,) = run_compact(data)
    saved = read_offset_checkpoint(FS, str(data.path / CLEANER_OFFSET_FILE))
    assert saved == {TopicPartition("orders", 0): first.clean_below}
    (second,) = run_compact(data)
    assert (second.bytes_before, second.clean_below) == (0, first.clean_below)
    assert compact_job.report([second], dry_run=False) == ["orders-0: nothing to clean"]


def test_a_run_that_was_killed_before_it_saved_gives_the_same_records(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 100)
    data.close()
    with monkeypatch.context() as patch:
        patch.setattr(compact_job, "write_offset_checkpoint", fail_save)
        with pytest.raises(KeyboardInterrupt):
            run_compact(data)
    after_kill = contents(data.path, ".log")
    (result,) = run_compact(data)
    assert contents(data.path, ".log") == after_kill
    assert result.records_after == 7


def fail_save(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_dry_run_reports_the_plan_and_changes_nothing(data: DataDirectory) -> None:
    fill(data.log("orders"), 100)
    data.close()
    write_clean_shutdown(FS, str(data.path), 7)
    before = contents(data.path, "")
    (result,) = run_compact(data, dry_run=True)
    assert result.records_after == 7
    assert contents(data.path, "") == {**before, LOCK_FILE: b""}
    assert "would go from" in compact_job.report([result], dry_run=True)[0]


def test_a_dry_run_refuses_logs_that_it_would_have_to_recover(data: DataDirectory) -> None:
    fill(data.log("orders"), 100)
    data.close()
    with open(max((data.path / "orders-0").glob("*.log")), "ab") as torn:
        torn.write(b"torn")
    before = contents(data.path, "")
    with pytest.raises(JobError, match=r"data was not stopped cleanly .* or leave out --dry-run"):
        run_compact(data, dry_run=True)
    assert contents(data.path, "") == {**before, LOCK_FILE: b""}
    assert run_compact(data)[0].records_after == 7


def test_a_topic_that_is_not_compacted_is_refused_when_named_and_passed_over_otherwise(data: DataDirectory) -> None:
    fill(data.log("orders"), 10)
    data.close()
    named = LogSource((str(data.path),), choose("orders", None, None))
    with pytest.raises(BadRequestError, match=r"orders: cleanup\.policy is not compact"):
        compact(None, CompactRequest(named))
    assert compact(None, CompactRequest(data.source())) == []
    assert compact_job.report([], dry_run=False) == ["no compacted topic"]


@pytest.mark.parametrize("topics", ["orders", "orders,other"])
def test_a_refused_topic_leaves_the_directory_as_it_was(data: DataDirectory, topics: str) -> None:
    """The clean-shutdown marker was gone, so that the next start of the broker had to recover all logs."""
    fill(data.log("orders"), 10)
    fill(data.log("other"), 10)
    data.close()
    write_clean_shutdown(FS, str(data.path), 7)
    before = contents(data.path, "")
    with pytest.raises(BadRequestError, match=r"cleanup\.policy is not compact"):
        compact(None, CompactRequest(LogSource((str(data.path),), choose(topics, None, None))))
    assert contents(data.path, "") == {**before, LOCK_FILE: b""}


def test_a_run_without_compacted_topics_changes_nothing(data: DataDirectory) -> None:
    fill(data.log("orders"), 10)
    data.close()
    write_clean_shutdown(FS, str(data.path), 7)
    before = contents(data.path, "")
    assert compact(None, CompactRequest(data.source())) == []
    assert contents(data.path, "") == {**before, LOCK_FILE: b""}


@pytest.mark.parametrize("run", [run_index, run_compact])
def test_a_checkpoint_that_cannot_be_read_leaves_all_directories_as_they_were(
    data: DataDirectory, tmp_path: Path, run: Any
) -> None:
    fill(data.log("orders"), 10)
    data.close()
    other = DataDirectory(tmp_path / "later")
    fill(other.log("other"), 10)
    other.close()
    (other.path / REPLICATION_OFFSET_FILE).write_text("damaged")
    for path in (data.path, other.path):
        write_clean_shutdown(FS, str(path), 7)
    data.source = lambda **_: LogSource((str(data.path), str(other.path)))  # type: ignore[method-assign]
    with pytest.raises(KafkaStorageError, match=REPLICATION_OFFSET_FILE):
        run(data)
    assert all((path / CLEAN_SHUTDOWN_FILE).exists() for path in (data.path, other.path))
