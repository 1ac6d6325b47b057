"""Progress of a recovery over all its threads: bytes and logs that are done, their totals, and the log line."""

from __future__ import annotations

import threading

from tidelog.log.files.segment_names import base_offset_of
from tidelog.log.segment.segment import LOG_SUFFIX
from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import KafkaStorageError


class RecoveryProgress:
    """Bytes walked and logs opened or refused, and the totals of both. Any thread."""

    __slots__ = ("_bytes", "_lock", "_logs", "_total_bytes", "_total_logs")

    def __init__(self, total_bytes: int, total_logs: int) -> None:
        self._lock = threading.Lock()
        self._total_bytes = total_bytes
        self._total_logs = total_logs
        self._bytes = 0
        self._logs = 0

    @property
    def bytes_done(self) -> int:
        """Bytes walked so far."""
        return self._bytes

    def add(self, count: int) -> None:
        """Count ``count`` more bytes as walked."""
        with self._lock:
            self._bytes += count

    def log_done(self) -> None:
        """Count one more log as done: it is open or refused."""
        with self._lock:
            self._logs += 1

    def line(self, seconds: float) -> str:
        """Format the log line: ``recovered 41 % in 3.2 s: 4,210 of 10,240 MB (1,315 MB/s), 17 of 40 logs``."""
        share = 100 * self._bytes / self._total_bytes if self._total_bytes else 100 * self._logs / self._total_logs
        rate = self._bytes / 1e6 / seconds if seconds > 0 else 0.0
        return (
            f"recovered {min(share, 100):.0f} % in {seconds:.1f} s: {self._bytes / 1e6:,.0f} of "
            f"{self._total_bytes / 1e6:,.0f} MB ({rate:,.0f} MB/s), {self._logs} of {self._total_logs} logs"
        )


def unsynced_bytes(file_system: FileSystem, path: str, recovery_point: int) -> int:
    """Count the bytes of segments with offsets from the recovery point on, which a recovery walks."""
    try:
        listing = file_system.list_directory(path)
    except KafkaStorageError:
        return 0  # loading the log reports the error
    named = ((base_offset_of(file.name), file.size) for file in listing if file.name.endswith(LOG_SUFFIX))
    segments = [(base, size) for base, size in named if base is not None]
    first = max((base for base, _ in segments if base <= recovery_point), default=0)
    return sum(size for base, size in segments if base >= first)
