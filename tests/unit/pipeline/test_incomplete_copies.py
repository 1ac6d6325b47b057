"""Copies of logs in an object store that lack small files, as old brokers wrote none: readers give the same answers as
for a local directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto")
pytest.importorskip("pyarrow")

from pyarrow.fs import LocalFileSystem, copy_files

from tests.support.moto_store import BUCKET, ENVIRONMENT, MotoStore, moto_store
from tests.support.pipelines import DataDirectory, end_transaction, fill
from tidelog.log.files.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    read_leader_epochs,
    read_offset_checkpoint,
    read_partition_metadata,
)
from tidelog.log.system.file_system import LogStorageError
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, plan_again, read_slice
from tidelog.pipeline.files.storage import files_at, resolve_path
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.reports.audit_report import findings
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan

FILES = (PARTITION_METADATA_FILE, LEADER_EPOCH_FILE, "*.snapshot", "*.index", "*.timeindex", "*.txnindex")
LACKS = [(), *((name,) for name in FILES), FILES]


@pytest.fixture(scope="module")
def store() -> Iterator[MotoStore]:
    with moto_store() as running:
        yield running


@pytest.fixture(params=LACKS, ids=lambda names: "+".join(names) if len(names) < 2 else "all")
def paths(
    request: pytest.FixtureRequest, data: DataDirectory, store: MotoStore, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """A local data directory without some files of its log, and the address of its copy."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    log = data.log("t")
    fill(log, 30)
    fill(log, 1, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 7, commit=False)
    fill(log, 30)
    data.close()
    for pattern in request.param:
        found = list((data.path / "t-0").glob(pattern))
        assert found
        for path in found:
            path.unlink()
    prefix = data.path.parent.name
    copy_files(str(data.path), f"{BUCKET}/{prefix}", source_filesystem=LocalFileSystem(),
               destination_filesystem=store.client(), use_threads=False)  # fmt: skip
    return str(data.path), store.address(prefix)


def read(path: str) -> tuple[Any, list[int]]:
    """Read a log's bounds, and the offsets of its committed records, also by a plan that is made again."""
    (partition,) = LogSource((path,)).partitions()
    wanted = OffsetRange(partition.directory, partition.bounds.start, partition.end)
    options = ReadOptions(Isolation.READ_COMMITTED)
    slices = [again for piece in plan(ReadRequest((wanted,))) for again in plan_again(piece, options)]
    batches = [batch for piece in slices for batch in read_slice(piece, Columns(("offset",)), options=options)]
    return partition.bounds, [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def audited(path: str) -> tuple[list[str], int]:
    """Audit a log; return the findings without the directory's name, and the number of records."""
    result = audit(None, AuditRequest(LogSource((path,))))
    (partition,) = result.partitions
    return sorted(line.replace(partition_path(path), "") for line in findings(partition)), result.total("records")


def partition_path(path: str) -> str:
    (directory,) = LogSource((path,)).directories()
    return directory.path


@pytest.mark.parametrize("look", [read, audited])
def test_a_copy_without_small_files_is_read_as_the_directory_is(
    paths: tuple[str, str], look: Callable[[str], object]
) -> None:
    """A partition without partition.metadata was refused, and an audit without leader-epoch-checkpoint failed."""
    local, copy = paths
    assert look(copy) == look(local)


@pytest.mark.parametrize("where", ["s3", "local"])
def test_readers_of_small_files_take_missing_ones_alike(where: str, tmp_path: Path, store: MotoStore) -> None:
    directory = resolve_path(store.address("nothing")) if where == "s3" else str(tmp_path / "nothing")
    files, path = files_at(directory), f"{directory}/file"
    assert read_partition_metadata(files, directory) is None
    assert read_leader_epochs(files, path) == []
    assert read_offset_checkpoint(files, path) == {}
    with pytest.raises(LogStorageError, match=r"nothing/file failed: No such file") as caught:
        files.read_file(path)
    assert caught.value.is_missing
