from __future__ import annotations

import os
import shutil
import tempfile
from errno import ENOSPC
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_directory import memory_place
from tidelog.broker.laboratory import snapshots
from tidelog.broker.laboratory.snapshots import STAGED, ByteRange, take_snapshot

NAMES = st.sampled_from(["0.log", "0.index", "orders-0", "meta.properties"])
CONTENTS = st.sampled_from([b"", b"records", b"records and more", b"RECORDS", b"r" * 9])
TREES = st.recursive(CONTENTS, lambda below: st.dictionaries(NAMES, below, max_size=4), max_leaves=12)
DIRECTORIES = st.dictionaries(NAMES, TREES, max_size=4)
Content = dict[str, "bytes | Content"]


def write(directory: Path, content: Content) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, below in content.items():
        if isinstance(below, bytes):
            (directory / name).write_bytes(below)
        else:
            write(directory / name, below)


def read(directory: Path) -> Content:
    return {path.name: read(path) if path.is_dir() else path.read_bytes() for path in directory.iterdir()}


@settings(max_examples=40, deadline=None)
@given(before=DIRECTORIES, after=DIRECTORIES, chunk=st.sampled_from([3, 1 << 20]))
def test_any_directory_is_restored_to_its_snapshot(before: Content, after: Content, chunk: int) -> None:
    """Restored twice: a snapshot can be used again. Copied in chunks shorter than a file, and in one."""
    with tempfile.TemporaryDirectory(dir=memory_place()) as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "CHUNK_BYTES", chunk)
        data = Path(place) / "data"
        write(data, before)
        snapshot = take_snapshot([str(data)], os.path.join(place, "0"), 0)
        for _ in range(2):
            shutil.rmtree(data)
            write(data, after)
            snapshot.stage([str(data)])
            assert {name: below for name, below in read(data).items() if name != STAGED} == after
            snapshot.install([str(data)])
            assert read(data) == before


def test_the_lock_and_the_reserve_stay_as_they_are(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data, {".lock": b"", ".reserve": b"r" * 4096, "meta.properties": b"version=1"})
    snapshot = take_snapshot([str(data)], str(tmp_path / "0"), 0)
    assert (tmp_path / "0").read_bytes() == b"version=1"
    write(data, {".lock": b"process 7", ".reserve": b"s" * 8192, "meta.properties": b"version=2"})
    snapshot.stage([str(data)])
    snapshot.install([str(data)])
    assert read(data) == {".lock": b"process 7", ".reserve": b"s" * 8192, "meta.properties": b"version=1"}


def test_a_file_that_became_longer_is_cut_in_its_place(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data, {"orders-0": {"0.log": b"records", "1.log": b"records", "2.log": b"records"}})
    snapshot = take_snapshot([str(data)], str(tmp_path / "0"), 0)
    before = {path.name: path.stat().st_ino for path in (data / "orders-0").iterdir()}
    write(data, {"orders-0": {"0.log": b"records and more", "1.log": b"RECORDS and more"}})
    snapshot.stage([str(data)])
    assert read(data / STAGED) == {"orders-0": {"1.log": b"records"}}
    snapshot.install([str(data)])
    after = {path.name: path.stat().st_ino for path in (data / "orders-0").iterdir()}
    assert {name for name in before if before[name] == after[name]} >= {"0.log", "2.log"}


@pytest.mark.parametrize("command", ["take_snapshot", "stage"])
def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """The copy fails in the middle, when some files of one directory are copied."""
    directories = [str(tmp_path / "one"), str(tmp_path / "two")]
    before: Content = {"orders-0": {"0.log": b"records"}, "orders-1": {"0.log": b"records"}}
    for directory in directories:
        write(Path(directory), before)
    snapshot = take_snapshot(directories, str(tmp_path / "0"), 0)
    after: Content = {"orders-0": {"0.log": b"RECORDS"}, "orders-1": {"0.log": b"RECORDS"}}
    for directory in directories:
        write(Path(directory), after)
    copied, copy_range = 0, snapshots.copy_range

    def copy(source: int, content: ByteRange, target: int) -> None:
        nonlocal copied
        copied += 1
        if copied > 3:
            raise OSError(ENOSPC, "no room")
        copy_range(source, content, target)

    monkeypatch.setattr(snapshots, "copy_range", copy)
    with pytest.raises(OSError, match="no room"):
        take_snapshot(directories, str(tmp_path / "1"), 0) if command == "take_snapshot" else snapshot.stage(
            directories
        )
    assert copied == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "one", "two"]
    assert [read(Path(directory)) for directory in directories] == [after, after]


def test_files_staged_by_a_killed_process_are_not_restored(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before: Content = {"orders-0": {"0.log": b"records"}}
    write(data, before)
    snapshot = take_snapshot([str(data)], str(tmp_path / "0"), 0)
    write(data, {"orders-0": {"1.log": b"later"}, STAGED: {"orders-0": {"0.log": b"others", "9.log": b"others"}}})
    snapshot.stage([str(data)])
    snapshot.install([str(data)])
    assert read(data) == before
