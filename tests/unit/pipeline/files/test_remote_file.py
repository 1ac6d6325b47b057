"""Objects read by position: the requests for each read, and objects that change or are deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog.pipeline.errors import ObjectGoneError, RemoteError
from tidelog.pipeline.files import remote, remote_file
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.remote_file import LOOKUP_BYTES, PIECE_BYTES, RemoteFile
from tidelog.pipeline.files.sources import OpenSegment

SIZE = 3 * PIECE_BYTES + 12_345
CONTENT = os.urandom(SIZE)
PATH = "s3://store/object"


@pytest.fixture
def object_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from pyarrow.fs import LocalFileSystem

    monkeypatch.setattr(remote, "_connect", lambda root, process: (LocalFileSystem(), str(tmp_path)))
    monkeypatch.setattr(remote_file, "_BLOCKS", remote_file._Blocks())
    (tmp_path / "object").write_bytes(CONTENT)
    return tmp_path / "object"


def replace_by(path: Path, content: bytes) -> None:
    """Replace the object by another one of its name, as a store does: completely, and with a later time."""
    before = path.stat().st_mtime_ns
    path.with_suffix(".new").write_bytes(content)
    os.utime(path.with_suffix(".new"), ns=(before + 10**9, before + 10**9))
    os.replace(path.with_suffix(".new"), path)


def test_look_ups_fetch_aligned_blocks_once_per_process(object_file: Path) -> None:
    count = ReadCount()
    for _ in range(2):
        with OpenSegment(PATH, count) as file:
            assert file.size == SIZE
            for position in (5, 100, LOOKUP_BYTES - 3, 2 * LOOKUP_BYTES):
                assert file.read_at(position, 61) == CONTENT[position : position + 61]
    assert (count.reads, count.bytes_read) == (3, 3 * LOOKUP_BYTES)


def test_blocks_are_forgotten_when_there_are_too_many(object_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "KEPT_BLOCKS", 1)
    count = ReadCount()
    with OpenSegment(PATH, count) as file:
        for position in (0, LOOKUP_BYTES, 0):
            file.read_at(position, 10)
    assert count.reads == 3


def test_a_large_read_is_one_request(object_file: Path) -> None:
    count = ReadCount()
    with OpenSegment(PATH, count) as file:
        assert file.read_at(7, 1_000_000) == CONTENT[7:1_000_007]
    assert (count.reads, count.bytes_read) == (1, 1_000_000)


def test_an_expected_range_is_fetched_once_and_nothing_beyond_it(object_file: Path) -> None:
    count, start, end = ReadCount(), 1000, 2 * PIECE_BYTES + 5000
    with OpenSegment(PATH, count) as file:
        file.expect(start, end)
        data = b"".join(file.read_at(at, min(300_000, end - at)) for at in range(start, end, 300_000))
        assert data == CONTENT[start:end]
    assert (count.reads, count.bytes_read) == (3, end - start)


def test_a_read_outside_the_expected_range_is_its_own_request(object_file: Path) -> None:
    with OpenSegment(PATH) as file:
        file.expect(PIECE_BYTES, 2 * PIECE_BYTES)
        assert file.read_at(PIECE_BYTES + 10, 10) == CONTENT[PIECE_BYTES + 10 : PIECE_BYTES + 20]
        assert file.read_at(0, 10) == CONTENT[:10]
        assert file.read_at(2 * PIECE_BYTES - 5, 200_000) == CONTENT[2 * PIECE_BYTES - 5 : 2 * PIECE_BYTES + 199_995]
        file.expect(0, 2 * SIZE)
        assert file.read_at(0, 2 * SIZE) == CONTENT


def test_the_end_gives_less(object_file: Path) -> None:
    with OpenSegment(PATH) as file:
        assert file.read_at(SIZE - 10, 100) == CONTENT[-10:]
        assert file.read_at(SIZE + 10, 100) == b""


def test_an_object_is_known_again(object_file: Path) -> None:
    with OpenSegment(PATH) as first, OpenSegment(PATH) as second:
        assert first.inode == second.inode != 0
        assert first.is_same(second.inode, second.ctime_ns, second.size)
        assert not first.was_replaced()
        replace_by(object_file, CONTENT)
        assert first.was_replaced()
        with OpenSegment(PATH) as now:
            assert not now.is_same(first.inode, 0, first.size)
        object_file.unlink()
        assert not first.was_replaced(), "what was read before it went is whole"


def test_a_missing_object_is_a_missing_file(object_file: Path) -> None:
    object_file.unlink()
    with pytest.raises(FileNotFoundError):
        OpenSegment(PATH)


@pytest.mark.parametrize(("is_gone", "kind"), [(True, ObjectGoneError), (False, RemoteError)])
def test_a_failed_request_is_a_remote_error(
    object_file: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool, kind: type[RemoteError]
) -> None:
    class Failing:
        def size(self) -> int:
            return SIZE

        def read_at(self, size: int, position: int) -> bytes:
            raise OSError("AWS Error SLOW_DOWN during GetObject operation: later")

        def close(self) -> None:
            pass

    opened = remote_file._open_object
    monkeypatch.setattr(remote_file, "_open_object", lambda path: (Failing(), opened(path)[1]))
    file = RemoteFile(PATH, ReadCount())
    if is_gone:
        object_file.unlink()
    with pytest.raises(kind, match="was deleted while" if is_gone else r"at byte 0: slow down \(GetObject\): later"):
        file.read_into(0, memoryview(bytearray(10)))
    file.close()


def test_a_cut_answer_is_a_remote_error(object_file: Path) -> None:
    file = RemoteFile(PATH, ReadCount())
    object_file.write_bytes(CONTENT[:1000])
    with pytest.raises(RemoteError, match="returned 1000 bytes from byte 0: expected 131072"):
        file.read_into(0, memoryview(bytearray(10)))
    file.close()
