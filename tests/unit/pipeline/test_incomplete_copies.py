"""Copies of logs in an object store that lack small files, as old brokers wrote none, or whose bucket is the data
directory: readers give the same answers as for a local directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from pyarrow.fs import LocalFileSystem, copy_files

from tests.support.moto_store import BUCKET, ENVIRONMENT, MotoStore, moto_store
from tests.support.pipelines import DataDirectory, end_transaction, fill
from tests.support.requirements import require_packages
from tidelog.log.files.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    read_leader_epochs,
    read_offset_checkpoint,
    read_partition_metadata,
)
from tidelog.log.system.file_system import LogStorageError
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, plan_again, read_slice
from tidelog.pipeline.errors import SelectionError
from tidelog.pipeline.files.remote import RemoteInfo, info_of
from tidelog.pipeline.files.stamps import settled_stamp_of, stamp_of
from tidelog.pipeline.files.storage import files_at, is_directory, resolve_path
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.reports.audit_report import findings
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan

require_packages("moto")

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


@pytest.fixture
def full_bucket(data: DataDirectory, store: MotoStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket whose objects are a data directory, without a prefix; its address ends with ``{}`` for a prefix."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    fill(data.log("t"), 5)
    data.close()
    bucket = data.path.parent.name.replace("_", "-").lower()
    store.client().create_dir(bucket)
    copy_files(str(data.path), bucket, source_filesystem=LocalFileSystem(), destination_filesystem=store.client(),
               use_threads=False)  # fmt: skip
    return store.address("{}").replace(f"s3://{BUCKET}/", f"s3://{bucket}")


@pytest.mark.parametrize("prefix", ["", "/"])
def test_a_bucket_may_be_a_data_directory(full_bucket: str, data: DataDirectory, prefix: str) -> None:
    """A look-up of the bucket's own stamp failed: "s3:/://: Missing bucket name"."""
    address = full_bucket.format(prefix)
    assert read(address) == read(str(data.path))
    assert audited(address) == audited(str(data.path))
    path = resolve_path(address)
    assert info_of(path) == RemoteInfo(is_directory=True, size=0, mtime_ns=0)
    assert (stamp_of(path), settled_stamp_of(path), is_directory(path)) == (None, None, True)


def test_a_bucket_without_objects_is_an_empty_path(store: MotoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    store.client().create_dir("empty")
    address = store.address("").replace(f"s3://{BUCKET}/", "s3://empty")
    assert info_of(resolve_path(address)) is None
    with pytest.raises(SelectionError, match="does not exist: expected a data directory"):
        LogSource((address,)).partitions()


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
