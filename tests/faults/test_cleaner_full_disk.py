"""A disk that is really full: rounds on a small tmpfs, which has to be mounted, so by root only."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cleaning import NOW_MS, LogWriter, compacted, file_names, open_log, records_of, whole
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.check import check_directory
from tidelog.log.system.file_system import LogStorageError, OsFileSystem

SIZE = 4 * 1024 * 1024
KEYS = 4000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of ``SIZE`` bytes."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a tmpfs needs root (CAP_SYS_ADMIN)")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.parametrize("map_bytes", [1024 * 1024, 1024], ids=["copying", "hash ranges"])
def test_round_on_a_full_disk_leaves_everything_and_the_next_one_cleans(small_disk: Path, map_bytes: int) -> None:
    log = open_log(small_disk, compacted(segment_bytes=4_000_000, file_delete_delay_ms=0))
    writer = LogWriter(log)
    for number in range(2 * KEYS // 50):
        first = number * 50
        writer.append([(b"key %d" % (n % (KEYS + 10)), b"v" * 200) for n in range(first, first + 50)])
    writer.roll()
    cleaner = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=map_bytes, io_buffer_bytes=64 * 1024))
    before, names = records_of(log), file_names(log)
    ballast = small_disk / "ballast"
    space = os.statvfs(small_disk)
    left = 200_000 if map_bytes > 1024 else 20_000
    ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - left))

    with pytest.raises(LogStorageError) as failure:
        cleaner.clean(whole(log), NOW_MS)

    assert failure.value.os_errno == errno.ENOSPC
    assert file_names(log) == names
    assert records_of(log) == before
    ballast.unlink()
    cleaner.clean(whole(log), NOW_MS)
    assert len(records_of(log)) == KEYS + 10
    log.close()
    assert check_directory(OsFileSystem(), log.directory) == []
