"""Exports through other Iceberg catalogs: REST, and any that pyiceberg's configuration names."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from tests.support.iceberg import NAME, offsets, run, table_of, target_below
from tests.support.iceberg_rest import IcebergRest, iceberg_rest
from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.iceberg import IcebergTarget

pytestmark = pytest.mark.usefixtures("catalogs")


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[IcebergRest]:
    with iceberg_rest(tmp_path / "rest") as server:
        yield server


def at(rest: IcebergRest, **properties: str) -> IcebergTarget:
    return IcebergTarget(rest.uri, NAME, properties=(("token", properties.get("token", rest.token)), ("type", "rest")))


def files(target: IcebergTarget) -> tuple[set[str], set[str]]:
    """List the data files in the table's folder, and those of its newest snapshot."""
    table = table_of(target)
    folder = Path(table.location().removeprefix("file://"), "data")
    known = {task.file.file_path for task in table.scan().plan_files()}
    return {f"file://{path}" for path in folder.glob("*.parquet")}, known


def test_runs_into_a_rest_catalog_add_each_record_once(data: DataDirectory, rest: IcebergRest) -> None:
    fill(data.log("orders"), 20)
    assert run(data, at(rest), file_bytes=1000).rows == 100
    fill(data.log("orders"), 2)
    assert run(data, at(rest)).rows == 10
    assert run(data, at(rest)).committed is False
    assert offsets(at(rest)) == list(range(110))
    assert not audit(None, AuditRequest(data.source(), NAME, iceberg=at(rest))).is_wrong


@pytest.mark.parametrize("seed", range(8))
def test_commits_whose_fate_is_unknown_neither_lose_nor_double_a_record(
    data: DataDirectory, rest: IcebergRest, seed: int
) -> None:
    chance, written = random.Random(20_261_122 + seed), 0
    for _ in range(4):
        written += len(fill(data.log("orders"), chance.randint(1, 3)))
        rest.faults = [chance.choice(("kept", "lost", "refused")) for _ in range(3)]
        with contextlib.suppress(JobError):
            run(data, at(rest), file_bytes=chance.choice((200, 1000, 1 << 20)), commit_files=chance.choice((1, 64)))
    rest.faults = []
    run(data, at(rest))
    assert offsets(at(rest)) == list(range(written))
    fill(data.log("orders"), 1)
    run(data, at(rest))
    there, known = files(at(rest))
    assert there == known, "no file that no snapshot has"


@pytest.mark.parametrize("next_first", [False, True])
def test_a_commit_that_a_catalog_makes_late_keeps_its_files_or_fails(
    data: DataDirectory, rest: IcebergRest, next_first: bool
) -> None:
    fill(data.log("orders"), 2)
    run(data, at(rest))
    fill(data.log("orders"), 2)
    rest.faults = ["late"]
    with pytest.raises(JobError, match="gateway"):
        run(data, at(rest))
    fill(data.log("orders"), 2)
    if next_first:
        run(data, at(rest))
        assert rest.commit_late() is False
    else:
        assert rest.commit_late() is True
        run(data, at(rest))
    assert offsets(at(rest)) == list(range(30))
    there, known = files(at(rest))
    assert there == known


def test_a_late_commit_after_another_one_of_its_run_keeps_its_files(data: DataDirectory, rest: IcebergRest) -> None:
    fill(data.log("orders"), 4)
    rest.faults = ["kept", "late"]
    with pytest.raises(JobError, match="gateway"):
        run(data, at(rest), file_bytes=200, commit_files=1)
    first = len(offsets(at(rest)))
    assert rest.commit_late() is True
    assert len(offsets(at(rest))) > first > 0
    run(data, at(rest))
    assert offsets(at(rest)) == list(range(20))


def test_a_run_overtaken_by_an_earlier_runs_late_commit_is_a_conflict(data: DataDirectory, rest: IcebergRest) -> None:
    fill(data.log("orders"), 2)
    rest.faults = ["late"]
    with pytest.raises(JobError, match="gateway"):
        run(data, at(rest))
    fill(data.log("orders"), 2)
    rest.faults = ["beaten"]
    with pytest.raises(ConflictError):
        run(data, at(rest))
    run(data, at(rest))
    assert offsets(at(rest)) == list(range(20))


def test_a_catalog_that_refuses_is_reported(data: DataDirectory, rest: IcebergRest) -> None:
    fill(data.log("orders"), 1)
    with pytest.raises(BadRequestError, match=r"Iceberg catalog http://127.0.0.1:\d+: .*no such token"):
        run(data, at(rest, token="another"))


def test_a_catalog_of_pyicebergs_configuration_is_found_by_its_name(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 2)
    (tmp_path / "warehouse").mkdir()
    configuration = {
        "type": "sql", "uri": f"sqlite:///{tmp_path / 'c.db'}", "warehouse": f"file://{tmp_path / 'warehouse'}",
    }  # fmt: skip
    (tmp_path / ".pyiceberg.yaml").write_text(
        "catalog:\n  prod:\n" + "".join(f"    {key}: {value}\n" for key, value in configuration.items())
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", __import__("pyiceberg.utils.config").utils.config.Config())
    run(data, IcebergTarget("prod", NAME))
    with contextlib.closing(load_catalog("prod")) as catalog:
        assert len(catalog.load_table(NAME).scan().to_arrow()) == 10


def test_the_name_of_a_catalog_in_a_database_is_an_option(data: DataDirectory, tmp_path: Path) -> None:
    fill(data.log("orders"), 2)
    target = target_below(tmp_path)
    run(data, IcebergTarget(target.catalog, NAME, target.warehouse, catalog_name="prod"))
    with contextlib.closing(load_catalog("prod", uri=target.catalog)) as catalog:
        assert len(catalog.load_table(NAME).scan().to_arrow()) == 10
    with contextlib.closing(load_catalog("tidelog", uri=target.catalog)) as catalog:
        assert catalog.list_namespaces() == []
