"""Directories in memory (tmpfs) for tests that write and sync thousands of small files, and need no real disk.

These tests only simulate faults, or only compare files, so the file system does not matter to them. On a disk each sync
waits for the journal: tests such as `tests/faults/test_cleaner_crashes.py` took two to four times the CPU time there.
A tmpfs behaves differently from a disk. So some tests stay on the disk: those that ask which pages are in memory
(`RWF_NOWAIT`), fill a disk or use special calls of a file system.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MEMORY = "/dev/shm"
_GIVEN = "basetemp"
ROOM = 1 << 30
"""Free bytes that the tmpfs must have; in a container of Docker it has only 64 MB by default."""
IN_MEMORY = (
    "tests/faults/test_adoption_crashes.py",
    "tests/faults/test_adoption_irregular_files.py",
    "tests/faults/test_answer_bytes.py",
    "tests/faults/test_broker_disk_errors.py",
    "tests/faults/test_cleaner_crashes.py",
    "tests/faults/test_cleaner_power_loss.py",
    "tests/faults/test_cleaner_readers.py",
    "tests/faults/test_deletion_interleavings.py",
    "tests/faults/test_disk_errors.py",
    "tests/faults/test_export_readers.py",
    "tests/faults/test_full_disk_load.py",
    "tests/faults/test_index_damage.py",
    "tests/faults/test_index_disk_errors.py",
    "tests/faults/test_index_kill.py",
    "tests/faults/test_log_compacted_once.py",
    "tests/faults/test_log_crashes.py",
    "tests/faults/test_log_damage.py",
    "tests/faults/test_log_isolation.py",
    "tests/faults/test_log_old_formats.py",
    "tests/faults/test_log_retries.py",
    "tests/faults/test_memory_errors.py",
    "tests/faults/test_metadata_crashes.py",
    "tests/faults/test_topic_crashes.py",
    "tests/faults/test_transaction_index_damage.py",
    "tests/faults/test_unopened_logs.py",
    "tests/fuzz/test_log_model.py",
    "tests/fuzz/test_other_writers.py",
    "tests/unit/",
)
"""Modules and packages whose `tmp_path` is in memory."""
ON_DISK = (
    "tests/unit/broker/network/",
    "tests/unit/broker/replica/fetching/",
    "tests/unit/broker/security/tls/test_tls_socket.py",
    "tests/unit/log/system/",
)
"""Exceptions from `IN_MEMORY`: tests of the file system, or of reads from the page cache alone (`RWF_NOWAIT`)."""


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of the test's own: in memory for `IN_MEMORY`, removed after the test; otherwise pytest's `tmp_path`.

    With ``--basetemp`` all directories are below its path, and stay if the test fails.
    """
    if basetemp_of(request.config) or not is_in_memory(request.node.nodeid):
        yield request.getfixturevalue("tmp_path")
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="tidelog-test-") as directory:
        yield Path(directory)


@contextmanager
def module_directory() -> Iterator[Path]:
    """A directory for a module's fixture that writes thousands of files: in memory, if there is room."""
    with tempfile.TemporaryDirectory(dir=memory_place(), prefix="tidelog-test-") as directory:
        yield Path(directory)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist the user's ``--basetemp``: a worker's own option is set even without one."""
    given = node.config.option.basetemp
    node.workerinput[_GIVEN] = given and str(given)


def basetemp_of(config: pytest.Config) -> str | None:
    """Return ``--basetemp`` as the user gave it."""
    worker = getattr(config, "workerinput", None)
    return config.option.basetemp if worker is None else worker[_GIVEN]  # type: ignore[no-any-return]


def is_in_memory(nodeid: str) -> bool:
    """Return whether the directories of a test are in memory, if there is such a file system."""
    return nodeid.startswith(IN_MEMORY) and not nodeid.startswith(ON_DISK) and has_room()


def memory_place() -> str | None:
    """Return the parent of directories in memory; None, which is the default of ``tempfile``, if there is no room."""
    return MEMORY if has_room() else None


def has_room() -> bool:
    """Return whether there is a file system in memory with ROOM free bytes."""
    if not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize >= ROOM
