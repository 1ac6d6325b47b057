"""Addresses of object stores, listings, small files and errors. A local directory stands for the object store."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tidelog.log.files.checkpoints import read_offset_checkpoint
from tidelog.log.system.file_system import LogStorageError
from tidelog.pipeline.errors import OptionError, RemoteError
from tidelog.pipeline.files import remote
from tidelog.pipeline.files.remote import info_of, is_remote, list_directory, locate, reason, remote_path
from tidelog.pipeline.files.stamps import settled_stamp_of, stamp_of
from tidelog.pipeline.files.storage import files_at, for_each, is_directory, names_in, require_mounted, resolve_path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Local directory whose files are the objects of ``s3://store``; no listing of an earlier test is kept."""
    from pyarrow.fs import LocalFileSystem

    monkeypatch.setattr(remote, "_connect", lambda root, process: (LocalFileSystem(), str(tmp_path)))
    monkeypatch.setattr(remote, "_LISTINGS", type(remote._LISTINGS)())
    return tmp_path


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/a%20b", "gs://bucket/a b"),
        ("s3://b/p?endpoint_override=http://h:1&region=x", "s3://b?endpoint_override=http:%2F%2Fh:1&region=x/p"),
        ("hdfs://user@host:8020/logs", "hdfs://user@host:8020/logs"),
    ],
)
def test_an_address_becomes_a_path_that_names_can_be_joined_to(given: str, path: str) -> None:
    assert remote_path(given) == path
    assert is_remote(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ftp://b/c", "path ftp://b/c: expected a directory, or an address that begins with one of s3://"),
        ("s3:///c", "expected s3://BUCKET/PREFIX"),
        ("s3://id:word@b/c", "path s3://...@b/c: expected no credentials in it"),
        ("abfs://c@a.net/x?client_secret=word", "expected no credentials in it"),
    ],
)
def test_an_invalid_address_is_an_error_that_shows_no_secret(given: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        remote_path(given)
    assert message in str(caught.value)
    assert "word" not in str(caught.value)


def test_an_option_that_pyarrow_does_not_know() -> None:
    with pytest.raises(OptionError, match=r"^s3://b\?colour=red: Unexpected query parameter"):
        locate(remote_path("s3://b/x?colour=red"))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("When listing: AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: There is none (Request ID: X)",
         "no such bucket (ListObjectsV2): There is none"),
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
         "access denied (HeadObject): No response body; expected credentials that may list and read it"),
        ("AWS Error UNKNOWN (HTTP status 503) during GetObject operation: slow\ndown", "unknown (GetObject): slow"),
        ("AWS Error UNKNOWN during GetObject operation: ", "unknown (GetObject): it does not say why"),
        ("cannot load libhdfs\ndlopen", "cannot load libhdfs"),
        ("", "OSError"),
    ],
)  # fmt: skip
def test_an_error_of_a_store_is_reduced_to_one_line(error: str, line: str) -> None:
    found = reason(OSError(error))
    assert line in found
    assert "\n" not in found


def test_directories_and_files_of_a_store_are_looked_up(store: Path) -> None:
    (store / "t-0").mkdir()
    (store / "t-0" / "a.log").write_bytes(b"12345")
    assert is_directory("s3://store/t-0")
    assert not is_directory("s3://store/other")
    assert names_in("s3://store/t-0") == ["a.log"]
    info = info_of("s3://store/t-0/a.log")
    assert info is not None
    assert (info.size, info.is_directory) == (5, False)
    assert info_of("s3://store/t-0/b.log") is None
    assert info_of("s3://store/other/b.log") is None
    stamp = stamp_of("s3://store/t-0/a.log")
    assert stamp is not None
    assert stamp.size == 5
    assert stamp_of("s3://store/t-0") is None
    assert settled_stamp_of("s3://store/t-0") is None
    with pytest.raises(FileNotFoundError):
        names_in("s3://store/other")


def test_a_listing_is_used_again_until_it_is_forgotten_or_too_old(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store / "a").touch()
    assert set(list_directory("s3://store")) == {"a"}
    (store / "b").touch()
    assert set(list_directory("s3://store")) == {"a"}
    remote.forget_listing("s3://store")
    assert set(list_directory("s3://store")) == {"a", "b"}
    (store / "c").touch()
    monkeypatch.setattr(remote, "LISTING_S", 0)
    assert set(list_directory("s3://store")) == {"a", "b", "c"}
    monkeypatch.setattr(remote, "MAX_LISTINGS", 0)
    list_directory("s3://store")
    assert not remote._LISTINGS


def test_small_files_of_a_store_are_read(store: Path) -> None:
    assert read_offset_checkpoint(files_at("s3://store/x"), "s3://store/x") == {}
    (store / "x").write_text("0\n1\nt 0 7\n")
    assert list(read_offset_checkpoint(files_at("s3://store/x"), "s3://store/x").values()) == [7]
    files = files_at("s3://store/x")
    assert files.read_file("s3://store/x") == b"0\n1\nt 0 7\n"
    with pytest.raises(LogStorageError, match="s3://store/y failed: No such file"):
        files.read_file("s3://store/y")
    (store / "d").mkdir()
    with pytest.raises(RemoteError, match="s3://store/d cannot be read: "):
        files.read_file("s3://store/d")


def test_for_each_works_on_objects_of_a_store_in_threads_and_keeps_their_order(store: Path) -> None:
    numbers = list(range(40))
    together = threading.Barrier(8, timeout=30)

    def look(number: int) -> int:
        if number < 8:
            together.wait()
        return number

    assert for_each(numbers, lambda number: f"s3://store/{number}", look) == numbers
    assert for_each(numbers[8:], lambda number: f"/data/{number}", look) == numbers[8:]
    assert for_each([], str, look) == []
    with pytest.raises(RemoteError, match="3"):
        for_each(numbers, lambda number: f"s3://store/{number}", _fails_from_three_on)


def _fails_from_three_on(number: int) -> int:
    if number >= 3:
        raise RemoteError(str(number))
    return number


def test_given_paths_are_resolved_to_absolute_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path("data") == os.path.join(os.getcwd(), "data")
    assert resolve_path("file:/x") == resolve_path("file:///x") == "/x"
    assert require_mounted("file:///x", "table") == "/x"
    with pytest.raises(OptionError, match="table s3://b/x: expected a directory that is mounted"):
        require_mounted("s3://b/x", "table")
