"""Export into Iceberg in this process: one snapshot per run, offsets in its summary, no row twice."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, ServerError
from sqlalchemy.exc import OperationalError

from tests.support.iceberg import NAME, offsets, run, table_of, target_below
from tests.support.pipelines import NOW_MS, DataDirectory, damage_first_batch, end_transaction, fill, killed_at
from tidelog.pipeline.errors import LogRewrittenError, TopicRecreatedError
from tidelog.pipeline.export import iceberg_states
from tidelog.pipeline.export.iceberg_states import STATE_KEY, state_of
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError, MissingPackageError
from tidelog.pipeline.jobs import iceberg as iceberg_job
from tidelog.pipeline.jobs.exporting import commits
from tidelog.pipeline.jobs.exporting.areas import MountedArea
from tidelog.pipeline.jobs.iceberg import IcebergTarget
from tidelog.protocol.record.record_batch import Record, build_batch

pytestmark = pytest.mark.usefixtures("catalogs")


@pytest.fixture
def target(tmp_path: Path) -> IcebergTarget:
    return target_below(tmp_path)


def test_each_run_is_one_snapshot_with_the_offsets(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 20)
    first = run(data, target, file_bytes=1000)
    fill(data.log("orders"), 2)
    second = run(data, target)
    third = run(data, target)
    assert (first.rows, first.files > 1, second.rows, third.committed) == (100, True, 10, False)
    table = table_of(target)
    assert len(table.snapshots()) == 2
    assert state_of(table).offsets() == {"orders": {0: 110}}
    assert offsets(target) == list(range(110))


@pytest.mark.parametrize("plain_characters", [0, 100])
def test_a_long_state_is_compressed(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch, plain_characters: int
) -> None:
    """A run reads what an earlier one has written in either form."""
    monkeypatch.setattr(iceberg_states, "PLAIN_CHARACTERS", 1 << 20)
    for number in range(40):
        fill(data.log("orders", number), 1)
    run(data, target, commit_files=1000)
    plain = table_of(target).properties[STATE_KEY]
    monkeypatch.setattr(iceberg_states, "PLAIN_CHARACTERS", plain_characters)
    fill(data.log("orders"), 1)
    assert run(data, target).rows == 5
    packed = table_of(target).properties[STATE_KEY]
    assert len(plain) > 3 * len(packed)
    monkeypatch.undo()
    assert state_of(table_of(target)).offsets() == {"orders": {number: 5 + 5 * (not number) for number in range(40)}}
    assert run(data, target).committed is False


@pytest.mark.parametrize("text", ["no base64", "no ASCII: \u00e9", "AAAA", "{", "[]"])
def test_a_damaged_state_is_reported(text: str) -> None:
    with pytest.raises(JobError, match="the summary is no"):
        iceberg_states.unpack(text, "the summary")


def test_snapshots_of_others_may_lie_between(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 2)
    run(data, target)
    table = table_of(target)
    table.delete("offset = 3")
    fill(data.log("orders"), 1)
    assert run(data, target).rows == 5
    assert offsets(target) == [n for n in range(15) if n != 3]


def rewritten(target: IcebergTarget) -> None:
    """Rewrite all rows, as maintenance does, and expire the snapshots before."""
    table = table_of(target)
    table.overwrite(table.scan().to_arrow())
    older = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
    table.maintenance.expire_snapshots().by_ids(older).commit()


def test_offsets_outlive_the_snapshots_of_exports(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 2)
    run(data, target)
    rewritten(target)
    assert run(data, target).committed is False
    fill(data.log("orders"), 1)
    assert run(data, target).rows == 5
    assert offsets(target) == list(range(15))


def test_a_table_that_does_not_say_its_offsets_is_refused(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 2)
    run(data, target)
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_states, "state_text", lambda _: None)  # as after a rollback
        with pytest.raises(
            JobError,
            match="the snapshot that recorded its offsets has expired or was rolled back; expected a new table",
        ):
            run(data, target)
    table = table_of(target)
    table.delete("offset = 3")
    with table_of(target).transaction() as transaction:
        transaction.remove_properties(STATE_KEY)
    table = table_of(target)
    newest = table.current_snapshot()
    assert newest is not None
    monkeypatch.setattr(table, "snapshot_by_id", lambda number: newest if number == newest.snapshot_id else None)
    with pytest.raises(
        JobError, match="the snapshot that recorded its offsets has expired or was rolled back; expected a new table"
    ):
        state_of(table)


def test_a_table_that_was_rolled_back_gets_each_record_once_again(data: DataDirectory, target: IcebergTarget) -> None:
    for _ in range(3):
        fill(data.log("orders"), 1)
        run(data, target)
    first, second, _ = (snapshot.snapshot_id for snapshot in table_of(target).snapshots())
    for snapshot in (second, first):
        table_of(target).manage_snapshots().rollback_to_snapshot(snapshot).commit()
        assert len(offsets(target)) < 15
        run(data, target)
        assert offsets(target) == list(range(15))
        assert run(data, target).committed is False


def test_a_table_that_was_rolled_back_gets_the_records_that_replaced_others(
    data: DataDirectory, target: IcebergTarget
) -> None:
    log = data.log("orders")
    fill(log, 1)
    run(data, target)
    (first,) = (snapshot.snapshot_id for snapshot in table_of(target).snapshots())
    fill(log, 1)
    run(data, target)
    log.truncate_to(5)
    newer = [Record(number, NOW_MS, b"k", b"newer") for number in range(5)]
    log.append_as_leader(memoryview(build_batch(newer)), leader_epoch=1)
    log.update_high_watermark(log.log_end_offset)
    with pytest.raises(LogRewrittenError):
        run(data, target)
    table_of(target).manage_snapshots().rollback_to_snapshot(first).commit()
    run(data, target)
    assert table_of(target).scan("offset >= 5").to_arrow().column("value").to_pylist() == [b"newer"] * 5
    assert offsets(target) == list(range(10))


def test_a_table_that_was_rolled_back_and_whose_snapshots_expired_is_refused(
    data: DataDirectory, target: IcebergTarget
) -> None:
    """Its properties have the state of an expired snapshot, not of the one whose rows the table has."""
    fill(data.log("orders"), 1)
    run(data, target)
    table_of(target).delete("offset = 3")
    deleted = table_of(target).current_snapshot()
    assert deleted is not None
    fill(data.log("orders"), 1)
    run(data, target)
    table_of(target).manage_snapshots().set_current_snapshot(deleted.snapshot_id).commit()
    older = [one.snapshot_id for one in table_of(target).snapshots() if one.snapshot_id != deleted.snapshot_id]
    table_of(target).maintenance.expire_snapshots().by_ids(older).commit()
    with pytest.raises(JobError, match="the snapshot that recorded its offsets has expired or was rolled back"):
        run(data, target)
    assert offsets(target) == [0, 1, 2, 4]


def test_a_rollback_during_a_run_is_a_conflict_though_the_states_number_comes_again(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 1)
    run(data, target)
    first = table_of(target).current_snapshot()
    assert first is not None
    fill(data.log("orders"), 1)
    run(data, target)
    fill(data.log("orders"), 1)
    write_files = commits._write

    def overtaken(*args: Any) -> None:
        write_files(*args)
        monkeypatch.setattr(commits, "_write", write_files)
        table_of(target).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
        run(data, target)

    monkeypatch.setattr(commits, "_write", overtaken)
    with pytest.raises(ConflictError):
        run(data, target)
    assert offsets(target) == list(range(15))


def test_a_range_without_rows_moves_the_offsets_only(data: DataDirectory, target: IcebergTarget) -> None:
    log = data.log("orders")
    fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 5, commit=False)
    result = run(data, target)
    assert (result.committed, result.rows, result.manifest.offsets()) == (True, 0, {"orders": {0: 6}})
    assert run(data, target).committed is False


def test_of_two_runs_one_wins_and_the_other_says_so(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 4)
    real = commits._write

    def slow(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(commits, "_write", real)
        run(data, target)

    monkeypatch.setattr(commits, "_write", slow)
    with pytest.raises(ConflictError, match=r"another writer committed to lake\.events meanwhile"):
        run(data, target)
    assert offsets(target) == list(range(20))


def test_a_commit_that_comes_between_look_and_commit_is_a_conflict_too(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 4)
    run(data, target)
    fill(data.log("orders"), 1)
    real = MountedArea.bring_in

    def others_first(*arguments: Any) -> list[str]:
        table_of(target).delete("offset = 0")
        monkeypatch.setattr(MountedArea, "bring_in", real)
        return real(*arguments)

    monkeypatch.setattr(MountedArea, "bring_in", others_first)
    with pytest.raises(ConflictError):
        run(data, target)
    run(data, target)
    assert offsets(target) == list(range(1, 25))


def test_a_table_that_another_run_makes_meanwhile_is_taken(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 4)
    real = SqlCatalog.load_table

    def too_early(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "load_table", real)
        run(data, target)
        raise NoSuchTableError

    monkeypatch.setattr(SqlCatalog, "load_table", too_early)
    assert run(data, target).committed is False
    assert offsets(target) == list(range(20))


@pytest.mark.parametrize(
    "error", [ServerError("busy\nwith details"), OperationalError("busy", None, Exception("busy"))]
)
def test_an_error_of_a_catalog_is_one_line(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    fill(data.log("orders"), 1)
    monkeypatch.setattr(iceberg_job, "_commit", refuse)
    with pytest.raises(JobError, match=r"^Iceberg table lake\.events in sqlite:.*: .*busy[^\n]*$"):
        run(data, target)


KILLS = {
    "before the files have their names": (iceberg_job, "_commit"),
    "before the snapshot": (iceberg_job, "add_files"),
    "before the catalog knows": (SqlCatalog, "commit_table"),
}


@pytest.mark.parametrize("moment", KILLS)
@pytest.mark.parametrize("grows", [False, True])
def test_a_run_that_was_killed_is_run_again_and_leaves_no_file(
    data: DataDirectory, target: IcebergTarget, moment: str, grows: bool
) -> None:
    fill(data.log("orders"), 2)
    run(data, target)
    fill(data.log("orders"), 4)
    with killed_at(*KILLS[moment]):
        run(data, target)
    if grows:  # the killed run's files have other ranges than the next one's
        fill(data.log("orders"), 4)
    run(data, target, file_bytes=1000 if grows else 1 << 20)
    rows = 50 if grows else 30
    assert offsets(target) == list(range(rows))
    area = Path(table_of(target).location().removeprefix("file://"))
    assert os.listdir(area / "_tidelog" / "staging") == []
    known = {task.file.file_path for task in table_of(target).scan().plan_files()}
    assert {f"file://{path}" for path in (area / "data").glob("*.parquet")} == known
    fill(data.log("orders"), 1)
    run(data, target)
    assert offsets(target) == list(range(rows + 5))


def test_a_run_commits_on_its_way_and_one_that_is_killed_continues_there(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 30)
    fields: dict[str, Any] = {"file_bytes": 1000, "commit_files": 2}
    real, ends = iceberg_job._commit, [0]

    def commit(table: Any, state: Any, *rest: Any) -> None:
        if len(ends) % 3 == 0:
            ends.append(-1)
            raise KeyboardInterrupt
        real(table, state, *rest)
        ends.append(state.topics["orders"].partitions[0].end)

    monkeypatch.setattr(iceberg_job, "_commit", commit)
    for _ in range(20):
        with contextlib.suppress(KeyboardInterrupt):
            if not run(data, target, **fields).committed:
                break
    committed = [end for end in ends if end >= 0]
    assert committed == sorted(set(committed))
    assert len(committed) > 4
    assert committed[-1] == 150
    assert len(table_of(target).snapshots()) == len(committed) - 1
    assert offsets(target) == list(range(150))


def test_damaged_batches_go_to_a_table_of_their_own_once(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    with killed_at(iceberg_job, "_commit"):
        run(data, target)
    assert run(data, target).dead_letters == 1
    letters = table_of(target, NAME + "_dead_letter").scan().to_arrow().to_pylist()
    assert [(letter["position"], letter["topic"]) for letter in letters] == [(0, "orders")]
    assert offsets(target) == list(range(5, 20))


def test_dead_letters_of_a_run_that_was_killed_after_its_commit_are_added(
    data: DataDirectory, target: IcebergTarget
) -> None:
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    with killed_at(iceberg_job._IcebergCommits, "_add_dead_letters"):
        run(data, target)
    assert run(data, target).committed is False
    for _ in range(2):
        letters = table_of(target, NAME + "_dead_letter").scan().to_arrow().to_pylist()
        assert [letter["position"] for letter in letters] == [0]
        run(data, target)


def test_a_recreated_topic_is_refused(data: DataDirectory, target: IcebergTarget) -> None:
    fill(data.log("orders"), 1)
    run(data, target)
    data.close()
    os.rename(data.path / "orders-0", data.path.parent / "gone")
    fill(data.log("orders", topic_id=bytes(range(1, 17))), 1)
    with pytest.raises(TopicRecreatedError):
        run(data, target)
    assert run(data, target, restart_recreated=True).rows == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "events"}, "Iceberg table events: expected NAMESPACE.TABLE"),
        ({"name": "lake."}, "expected NAMESPACE.TABLE"),
        ({"name": ". "}, "expected NAMESPACE.TABLE"),
        ({"catalog": "nonsense"}, "Iceberg catalog nonsense"),
        ({"warehouse": None}, "give a warehouse"),
    ],
)
def test_bad_targets_are_reported(
    data: DataDirectory, target: IcebergTarget, change: dict[str, Any], message: str
) -> None:
    fill(data.log("orders"), 1)
    fields = {"catalog": target.catalog, "name": target.name, "warehouse": target.warehouse, **change}
    with pytest.raises(BadRequestError, match=message):
        run(data, IcebergTarget(**fields))


def test_what_a_client_of_a_catalog_says_is_one_line(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of Glue's client ended the export in a traceback."""
    pytest.importorskip("boto3")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    fill(data.log("orders"), 1)
    with pytest.raises(BadRequestError, match="Iceberg catalog x: You must specify a region"):
        run(data, IcebergTarget("x", NAME, target.warehouse, (("type", "glue"),)))


@pytest.mark.parametrize("scheme", ["postgresql+psycopg2", "no such", "http"])
def test_no_message_has_the_catalogs_password(data: DataDirectory, scheme: str) -> None:
    fill(data.log("orders"), 1)
    target = IcebergTarget(f"{scheme}://user:hidden@127.0.0.1:1/db", NAME, properties=(("token", "hidden"),))
    with pytest.raises((BadRequestError, JobError)) as refused:
        run(data, target)
    assert "hidden" not in str(refused.value)


def test_without_pyiceberg_the_package_is_named(
    data: DataDirectory, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pyiceberg is not installed: pip install 'tidelog\[iceberg\]'"):
        run(data, target)
