"""Exports into Delta tables in an object store: each record once, and no object that no version refers to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable

from tests.support.moto_store import BUCKET, ENVIRONMENT, MotoStore, moto_store
from tests.support.pipelines import DataDirectory, damage_first_batch, fill, killed_at
from tests.support.requirements import require_packages
from tidelog.pipeline.errors import RemoteError, TopicRecreatedError
from tidelog.pipeline.files.delta_address import DeltaAddress
from tidelog.pipeline.job_errors import BadRequestError, ConflictError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult
from tidelog.pipeline.jobs.exporting import commits, delta
from tidelog.pipeline.jobs.exporting.areas import StoreArea
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.runner import run_tasks

require_packages("moto")


@pytest.fixture(scope="module")
def store() -> Iterator[MotoStore]:
    with moto_store() as running:
        yield running


@pytest.fixture
def table(tmp_path: Path, store: MotoStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a table in a folder of its own."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return store.address(f"{tmp_path.name}/orders")


def run(data: DataDirectory, table: str, **fields: Any) -> ExportResult:
    return export_to_delta(None, ExportRequest(data.source(), table, **fields))


def rows(table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaAddress.of(table).open().to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def offsets(table: str) -> list[int]:
    return [row["offset"] for row in rows(table)]


def left_over(store: MotoStore, table: str) -> set[str]:
    """List objects that no version refers to, files of runs, and states that were not committed."""
    opened = DeltaAddress.of(table).open()
    folder = DeltaAddress.of(table).uri.removeprefix(f"s3://{BUCKET}/")
    known = {uri for version in range(opened.version() + 1) for uri in version_of(table, version).file_uris()}
    states = {name for name in store.names_below(f"{folder}/_tidelog") if "/delta-" in name}
    assert len(states) == opened.transaction_version("tidelog.export")
    traces = store.names_below(f"{folder}/_tidelog/runs") | store.names_below(f"{folder}/dead-letter")
    return (store.names_below(f"{folder}/data") - known) | traces


def version_of(table: str, version: int) -> DeltaTable:
    return DeltaAddress.of(table).open(version)


def test_runs_add_each_record_once_and_the_audit_agrees(data: DataDirectory, table: str, store: MotoStore) -> None:
    fill(data.log("orders"), 20)
    assert run(data, table, file_bytes=1000, commit_files=4).rows == 100
    fill(data.log("orders"), 2)
    assert run(data, table).rows == 10
    assert run(data, table).committed is False
    assert offsets(table) == list(range(110))
    assert left_over(store, table) == set()
    assert not audit(None, AuditRequest(data.source(), table)).is_wrong


def test_a_row_that_another_writer_deleted_is_reported_and_not_written_again(
    data: DataDirectory, table: str, store: MotoStore
) -> None:
    fill(data.log("orders"), 22)
    run(data, table, file_bytes=1000, commit_files=4)
    opened = DeltaAddress.of(table).open()
    opened.delete("offset = 3")
    opened.optimize.compact()
    (partition,) = audit(None, AuditRequest(data.source(), table)).partitions
    assert sum(one.missing for one in partition.comparisons) == 1
    fill(data.log("orders"), 1)
    run(data, table)
    assert offsets(table) == [number for number in range(115) if number != 3]


def test_an_audit_refuses_the_rows_of_two_topics_of_one_name(
    data: DataDirectory, table: str, store: MotoStore, tmp_path: Path
) -> None:
    fill(data.log("orders"), 1)
    run(data, table)
    data.close()
    os.rename(data.path / "orders-0", tmp_path / "gone")
    fill(data.log("orders", topic_id=bytes(range(1, 17))), 1)
    run(data, table, restart_recreated=True)
    with pytest.raises(TopicRecreatedError, match="rows of a deleted topic orders"):
        audit(None, AuditRequest(data.source(), table))


KILLS = {
    "while files are written": (commits, "run_tasks"),
    "before the files count": (StoreArea, "bring_in"),
    "before the commit": (delta._DeltaCommits, "_add"),
    "before the dead letters": (delta._DeltaCommits, "_add_dead_letters"),
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_run_that_was_killed_is_run_again_and_leaves_no_object(
    data: DataDirectory, table: str, store: MotoStore, moment: str
) -> None:
    fill(data.log("orders"), 2)
    run(data, table)
    fill(data.log("orders"), 4)
    with killed_at(*KILLS[moment]):
        run(data, table)
    fill(data.log("orders"), 4)
    run(data, table, file_bytes=1000)
    assert offsets(table) == list(range(50))
    assert left_over(store, table) == set()


@pytest.mark.parametrize("is_new", [True, False])
def test_of_two_runs_one_wins_and_the_others_objects_go(
    data: DataDirectory, table: str, store: MotoStore, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """The second run commits after the first one has read the table, and before it commits."""
    fill(data.log("orders"), 1)
    if not is_new:
        run(data, table)
    fill(data.log("orders"), 3)
    real = StoreArea.bring_in

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(StoreArea, "bring_in", real)
        run(data, table)
        return real(*arguments)

    monkeypatch.setattr(StoreArea, "bring_in", overtaken)
    with pytest.raises(ConflictError):
        run(data, table)
    assert offsets(table) == list(range(20))
    assert left_over(store, table) == set()
    assert not audit(None, AuditRequest(data.source(), table)).is_wrong


def test_a_run_whose_objects_later_ones_took_away_is_a_conflict(
    data: DataDirectory, table: str, store: MotoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 1)
    real = run_tasks

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(commits, "run_tasks", real)
        done = list(real(*arguments))
        run(data, table)
        run(data, table)  # nothing new, but it clears away
        return done

    monkeypatch.setattr(commits, "run_tasks", overtaken)
    with pytest.raises(ConflictError, match="another export committed"):
        run(data, table)
    assert offsets(table) == list(range(5))
    assert left_over(store, table) == set()


def test_objects_that_a_run_writes_after_others_cleared_it_away_go(
    data: DataDirectory, table: str, store: MotoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object that names the run was gone, so no run removed them."""
    fill(data.log("orders"), 1)
    real = run_tasks

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(commits, "run_tasks", real)
        run(data, table)
        run(data, table)  # nothing new, but it clears away
        return real(*arguments)

    monkeypatch.setattr(commits, "run_tasks", overtaken)
    with pytest.raises(ConflictError, match="another export committed"):
        run(data, table)
    assert offsets(table) == list(range(5))
    assert left_over(store, table) == set()


def test_a_commit_that_another_writer_overtakes_is_a_conflict(
    data: DataDirectory, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 1)
    run(data, table)
    fill(data.log("orders"), 1)
    real = StoreArea.bring_in

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(StoreArea, "bring_in", real)
        DeltaAddress.of(table).open().delete("offset = 3")
        return real(*arguments)

    monkeypatch.setattr(StoreArea, "bring_in", overtaken)
    with pytest.raises(ConflictError, match="another writer committed"):
        run(data, table)
    run(data, table)
    assert offsets(table) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_the_objects_of_a_run_that_may_still_commit_stay(data: DataDirectory, table: str, store: MotoStore) -> None:
    fill(data.log("orders"), 2)
    run(data, table)
    fill(data.log("orders"), 2)
    with killed_at(delta._DeltaCommits, "_add"):
        run(data, table)
    folder = DeltaAddress.of(table).uri.removeprefix(f"s3://{BUCKET}/")
    assert len(store.names_below(f"{folder}/data")) == 2
    assert len(store.names_below(f"{folder}/_tidelog/runs")) == 1
    run(data, table)
    assert offsets(table) == list(range(20))
    assert left_over(store, table) == set()


def test_a_table_in_a_store_has_the_latest_values(data: DataDirectory, table: str, store: MotoStore) -> None:
    fill(data.log("orders"), 4)
    run(data, table, mode="upsert", file_bytes=200)
    fill(data.log("orders"), 1)
    run(data, table, mode="upsert")
    assert sorted((row["key"], row["offset"]) for row in rows(table)) == [
        (b"key-0", 20), (b"key-1", 21), (b"key-2", 22), (b"key-3", 23), (b"key-4", 24), (b"key-5", 17), (b"key-6", 18),
    ]  # fmt: skip
    assert left_over(store, table) == set()
    assert not audit(None, AuditRequest(data.source(), table)).is_wrong


@pytest.mark.parametrize("moment", ["before the commit", "before the dead letters", "never"])
def test_dead_letters_are_stored_once_wherever_the_run_is_killed(
    data: DataDirectory, table: str, store: MotoStore, moment: str
) -> None:
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    if moment in KILLS:
        with killed_at(*KILLS[moment]):
            run(data, table)
    run(data, table)
    assert offsets(table) == list(range(5, 20))
    folder = DeltaAddress.of(table).uri.removeprefix(f"s3://{BUCKET}/")
    assert len(store.names_below(f"{folder}/_tidelog/dead-letter")) == 1
    assert left_over(store, table) == set()


def test_a_prefix_with_other_objects_is_refused(data: DataDirectory, table: str, store: MotoStore) -> None:
    fill(data.log("orders"), 1)
    folder = DeltaAddress.of(table).uri.removeprefix("s3://")
    with store.client().open_output_stream(f"{folder}/other.txt") as stream:
        stream.write(b"other")
    with pytest.raises(BadRequestError, match="is not empty and no exported table"):
        run(data, table)


def test_a_store_that_is_away_is_reported_in_one_line(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    address = DeltaAddress.of("s3://lake/orders?endpoint_override=http%3A%2F%2F127.0.0.1%3A1&region=us-east-1")
    with pytest.raises(RemoteError, match=r"^Delta table s3://lake/orders: .+[^\n]+$"):
        address.open_if_there()
