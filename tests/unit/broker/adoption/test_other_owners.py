"""Adoption of directories with files of other owners: a file that may not be read is named in the refusal, never
skipped."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.unit.broker.adoption.test_adopt import SILENT, TIME, kraft_source, served_records
from tidelog.broker.adoption.adopt import carry_out
from tidelog.broker.adoption.plan import AdoptionOptions, make_plan
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileEntry, LogStorageError, OpenFile, OsFileSystem
from tidelog.protocol.errors import KafkaStorageError

OTHER = 12_345


class OthersFileSystem(OsFileSystem):
    """A file system on which one path belongs to another owner and may not be read."""

    def __init__(self, denied: str, operations: tuple[str, ...] = ("open", "list", "link")) -> None:
        self.denied = denied
        self.operations = operations

    def _check(self, operation: str, path: str) -> None:
        if path == self.denied and operation in self.operations:
            raise LogStorageError(operation, path, errno.EACCES)

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        self._check("open", path)
        return super().open_file(path, create=create, writable=writable)

    def read_file(self, path: str) -> bytes:
        self._check("open", path)
        return super().read_file(path)

    def list_directory(self, path: str) -> list[FileEntry]:
        self._check("list", path)
        return super().list_directory(path)

    def link_file(self, path: str, new: str) -> None:
        self._check("link", path)
        super().link_file(path, new)


def adopt_and_get_error(file_system: OsFileSystem, source: Path, target: Path, *, link: bool) -> str:
    """Adopt the directory; return the error, empty if everything was adopted."""
    try:
        plan = make_plan(file_system, TIME, AdoptionOptions((str(source),), str(target), link=link))
        try:
            if plan.problems:
                return "\n".join(plan.problems)
            carry_out(file_system, TIME, plan, SILENT)
        finally:
            plan.close()
    except KafkaStorageError as error:
        return str(error)
    return ""


def names_in_data_directory(target: Path) -> list[str]:
    """List the names in the data directory that a broker would serve, or that an unfinished adoption left."""
    hidden = ("__cluster_metadata-0", ".lock", "meta.properties")
    return sorted(name for name in os.listdir(target) if name not in hidden) if target.exists() else []


@pytest.mark.parametrize("link", [False, True])
def test_an_unreadable_file_is_named_and_nothing_is_adopted(tmp_path: Path, link: bool) -> None:
    source = kraft_source(tmp_path / "kafka").path
    read = [source / "orders-1", *(path for path in (source / "orders-1").iterdir())]
    for number, path in enumerate(sorted(read)):
        target = tmp_path / f"data-{number}"
        error = adopt_and_get_error(OthersFileSystem(str(path)), source, target, link=link)
        assert str(path) in error, path
        assert "Permission denied" in error
        assert names_in_data_directory(target) == []


def test_links_to_files_of_others_are_refused_and_a_copy_is_made_by_the_next_run(tmp_path: Path) -> None:
    """A file that may only be read cannot be linked on Linux (``fs.protected_hardlinks``)."""
    source, target = kraft_source(tmp_path / "kafka").path, tmp_path / "data"
    first = str(min((source / "orders-1").glob("*.log")))
    error = adopt_and_get_error(OthersFileSystem(first, ("link",)), source, target, link=True)
    assert f"link of {first} failed: Permission denied" in error
    assert names_in_data_directory(target) == []
    assert adopt_and_get_error(OthersFileSystem(first, ("link",)), source, target, link=False) == ""
    assert [name for name in names_in_data_directory(target) if name.startswith("orders")] == ["orders-0", "orders-1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root alone")
def test_root_takes_over_files_of_other_owners_and_changes_no_owner(tmp_path: Path) -> None:
    source, target = kraft_source(tmp_path / "kafka").path, tmp_path / "data"
    files = [source, *source.rglob("*")]
    for path in files:
        os.chown(path, OTHER, OTHER)
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert adopt_and_get_error(OsFileSystem(), source, target, link=False) == ""
    assert {path.stat().st_uid for path in files} == {OTHER}
    assert {path.stat().st_uid for path in target.rglob("*")} == {0}
    assert served_records(target, TopicPartition("orders", 1)) == served_records(source, TopicPartition("orders", 1))
