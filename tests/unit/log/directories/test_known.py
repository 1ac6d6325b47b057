"""The list of a lone broker's log directories, which is kept in the first of them."""

from __future__ import annotations

from pathlib import Path

from tidelog.log.directories.known import KNOWN_DIRECTORIES_FILE, note_known_directories, read_known_directories
from tidelog.log.system.file_system import OsFileSystem

FILE_SYSTEM = OsFileSystem()


def test_the_list_holds_the_directories_of_the_last_start(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b c", "d")]
    (tmp_path / "a").mkdir()
    for given in (paths, paths[:2], paths[:1]):
        note_known_directories(FILE_SYSTEM, given)
        assert read_known_directories(FILE_SYSTEM, paths[0]) == set(given)


def test_a_single_directory_needs_no_list(tmp_path: Path) -> None:
    note_known_directories(FILE_SYSTEM, [str(tmp_path)])
    assert not (tmp_path / KNOWN_DIRECTORIES_FILE).exists()
    assert read_known_directories(FILE_SYSTEM, str(tmp_path)) == set()
