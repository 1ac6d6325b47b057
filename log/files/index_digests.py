"""Digests of the transaction indices of a log directory that agree with their segments' markers, by partition.

They are kept in the file ``transaction-index-digests``, which is written with the recovery points and before the
clean-shutdown marker. It has the form of Kafka's checkpoints (version, count, lines) with lines
``topic partition digest,digest,...``. A digest covers one segment: topic id, base offset, size of the records, content
of the index. An outdated digest matches no segment and does no harm.
Apache Kafka neither writes nor reads the file. It is read when the first log opens, not at the start. Any thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from struct import Struct

from tidelog.log.files.checkpoints import decode_lines, encode_lines
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

INDEX_DIGESTS_FILE = "transaction-index-digests"
_BASE_OFFSET_AND_SIZE = Struct(">qq")


def digest_of(topic_id: bytes | None, base_offset: int, size: int, content: bytes) -> str:
    """Compute the digest, 16 hexadecimal digits, of a transaction index that holds ``content``, for a segment with
    ``size`` bytes of records.
    """
    import hashlib  # late: OpenSSL's hashes take half a megabyte of an idle broker

    segment = (topic_id or b"") + _BASE_OFFSET_AND_SIZE.pack(base_offset, size)
    return hashlib.blake2b(segment + content, digest_size=8).hexdigest()


class IndexDigests:
    """The digests of one log directory."""

    __slots__ = ("_file_system", "_lines", "_lock", "_path", "_written")

    def __init__(self, file_system: FileSystem, directory: str) -> None:
        self._file_system = file_system
        self._path = os.path.join(directory, INDEX_DIGESTS_FILE)
        self._lines: dict[tuple[str, str], str] | None = None
        self._written: dict[tuple[str, str], str] | None = None
        """The digests in the file; None if it was not read or written yet."""
        self._lock = threading.Lock()

    def _load(self) -> dict[tuple[str, str], str]:
        """Return the digests by topic and partition, read from the file at first. An unreadable file has none. Under
        the lock."""
        if self._lines is None:
            self._lines = {}
            if self._file_system.exists(self._path):
                try:
                    found = decode_lines(self._file_system.read_file(self._path), self._path, 3)
                    self._lines = {(topic, partition): digests for topic, partition, digests in found}
                    self._written = dict(self._lines)
                except KafkaStorageError as error:
                    logger.warning("digests are lost, so transaction indices are compared with the markers: %s", error)
        return self._lines

    def digests_of(self, partition: TopicPartition) -> frozenset[str]:
        """Return the digests of a partition's segments."""
        with self._lock:
            known = self._load().get((partition.topic, str(partition.partition)), "")
        return frozenset(known.split(",")) if known else frozenset()

    def note(self, partition: TopicPartition, digests: Iterable[str]) -> None:
        """Replace the digests of a partition's segments."""
        joined = ",".join(digests)
        with self._lock:
            lines, key = self._load(), (partition.topic, str(partition.partition))
            if joined:
                lines[key] = joined
            else:
                lines.pop(key, None)

    def write(self, partitions: Iterable[TopicPartition]) -> None:
        """Write the digests of ``partitions`` to the file. Nothing is written if the file has just these, or if neither
        ``digests_of`` nor ``note`` was called yet. Raises KafkaStorageError.
        """
        with self._lock:
            if self._lines is None:
                return
            named = {(partition.topic, str(partition.partition)) for partition in partitions}
            kept = {key: digests for key, digests in self._lines.items() if key in named}
            if kept != self._written:
                lines = [f"{' '.join(key)} {digests}" for key, digests in kept.items()]
                self._file_system.replace_file(self._path, encode_lines(lines))
                self._written = kept
