"""Copies of directories have the same bytes and take no more blocks of the disk."""

from __future__ import annotations

import os
from errno import EIO
from pathlib import Path

import pytest

from tests.support.sparse_copy import copy_tree

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    "data",
    [{}, {0: b"head"}, {4 * MEBIBYTE: b"middle"}, {0: b"head", 8 * MEBIBYTE - 4: b"tail"}],
    ids=["a hole alone", "data first", "data between holes", "data at both ends"],
)
def test_holes_stay_holes(tmp_path: Path, data: dict[int, bytes]) -> None:
    file = tmp_path / "source" / "partition-0" / "00.index"
    file.parent.mkdir(parents=True)
    with file.open("wb") as written:
        written.truncate(8 * MEBIBYTE)
        for position, piece in data.items():
            written.seek(position)
            written.write(piece)
    copy_tree(tmp_path / "source", tmp_path / "target")
    copied = tmp_path / "target" / "partition-0" / "00.index"
    assert copied.read_bytes() == file.read_bytes()
    assert copied.stat().st_blocks <= file.stat().st_blocks + 8
    assert copied.stat().st_mtime_ns == file.stat().st_mtime_ns


def test_empty_and_whole_files_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "empty").touch()
    (source / "whole").write_bytes(bytes(range(256)) * 4096)
    copy_tree(source, tmp_path / "target")
    assert {path.name: path.read_bytes() for path in (tmp_path / "target").iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }


def test_a_file_that_cannot_be_read_is_not_copied_as_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(EIO, "broken")

    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"data")
    monkeypatch.setattr(os, "lseek", fail)
    with pytest.raises(OSError, match="broken"):
        copy_tree(tmp_path / "source", tmp_path / "target")
