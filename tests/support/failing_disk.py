"""A disk that fails under a real broker: a small library, preloaded, that gives EIO for one directory on demand.

While the file ``trigger`` exists, writes and syncs of files below the directory whose path it holds fail with EIO, as
they do when a disk dies under a running process. Nothing in the broker knows of it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.broker import TidelogProcess
from tests.support.requirements import require_tool

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
    const char *trigger = getenv("FAILING_DISK_TRIGGER");
    char bad[4096], link[64], path[4096];
    int file = trigger ? open(trigger, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t size = read(file, bad, sizeof bad - 1);
    close(file);
    if (size <= 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < size || memcmp(path, bad, size) != 0) return 0;
    errno = EIO;
    return 1;
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? -1 : real(fd);
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    return fails(fd) ? -1 : real(fd);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return fails(fd) ? -1 : real(fd, data, size, position);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t position) {
    return pwrite64(fd, data, size, position);
}
"""


class FailingDisk:
    """Built once per test directory; ``fail`` breaks everything below a directory, ``heal`` ends that."""

    def __init__(self, directory: Path) -> None:
        compiler = require_tool("cc", install="apt-get install gcc")
        directory.mkdir(parents=True, exist_ok=True)
        source, self.library = directory / "failing_disk.c", directory / "failing_disk.so"
        source.write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self.library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self.trigger = directory / "trigger"

    def fail(self, directory: Path) -> None:
        temporary = self.trigger.with_suffix(".new")
        temporary.write_text(str(directory))
        temporary.rename(self.trigger)

    def heal(self) -> None:
        self.trigger.unlink(missing_ok=True)


class BrokerOnFailingDisk(TidelogProcess):
    """A broker whose disk the test can break."""

    def __init__(self, directory: Path, disk: FailingDisk, overrides: Mapping[str, str]) -> None:
        super().__init__(directory, overrides)
        self.disk = disk

    def command(self) -> list[str]:
        """Return the command, with the directories from ``log.dirs``."""
        words = super().command()
        at = words.index("--data-dir")
        return words[:at] + words[at + 2 :]

    def environment(self) -> dict[str, str]:
        preload = {"LD_PRELOAD": str(self.disk.library), "FAILING_DISK_TRIGGER": str(self.disk.trigger)}
        return {**super().environment(), **preload}
