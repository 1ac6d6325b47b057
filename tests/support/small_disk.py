"""A small file system for one test: a tmpfs that can be filled to the last byte and emptied again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.requirements import missing, require_tool

BALLAST = ".ballast"
_STEPS = (1 << 20, 1 << 16, 1 << 12, 1)


class SmallDisk:
    """A tmpfs of ``size_bytes`` at ``path``. Skips the test where mounting is not permitted; in CI that fails it."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        require_tool("mount", install="apt-get install mount")
        self.path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes},mode=755", "tmpfs", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            missing(f"the right to mount a tmpfs ({done.stderr.strip()})", install="run the tests as root")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True, capture_output=True)

    def fill(self, leave: int = 0) -> None:
        """Fill the disk up to ``leave`` free bytes. If a broker writes meanwhile, filling ends when no byte is free."""
        with (self.path / BALLAST).open("ab") as ballast:
            for step in _STEPS:
                while self.free_bytes > leave and self._grow(ballast.fileno(), min(step, self.free_bytes - leave)):
                    pass

    @staticmethod
    def _grow(fd: int, size: int) -> bool:
        try:
            os.posix_fallocate(fd, os.fstat(fd).st_size, max(size, 1))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        return True

    def make_room(self) -> None:
        """Free the space that ``fill`` took."""
        (self.path / BALLAST).unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be written."""
        with contextlib.suppress(FileNotFoundError):
            return shutil.disk_usage(self.path).free
        return 0
