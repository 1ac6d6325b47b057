"""The file ``bootstrap.checkpoint`` of a log directory: records with which a new metadata log begins.

``tidelog format`` and Kafka's ``kafka-storage format`` write it: the levels of features, and the first users. Only the
first start commits its records: a log that has feature levels is not new. The file stays, as in Kafka. It is framed
like a snapshot, at offset and epoch 0. Source: BootstrapDirectory and BatchFileWriter of Kafka 4.3.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import METADATA_VERSION, VersionedRecord
from tidelog.broker.metadata.log_reader import read_batches
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, MetadataImage
from tidelog.broker.metadata.replay import SnapshotId
from tidelog.broker.metadata.snapshot import build_snapshot, read_snapshot
from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError, UnsupportedVersionError

BOOTSTRAP_FILE = "bootstrap.checkpoint"
_FOR_OTHERS = 0o077
_AFTER_FIRST = SnapshotId(1, 0)
"""Id for reading the file as a snapshot. With end offset 0 the image would keep the empty image's offset, and the
replay would ignore the records.
"""


def bootstrap_path(directory: str) -> str:
    """Return the path of the file in a log directory."""
    return os.path.join(directory, BOOTSTRAP_FILE)


def write_bootstrap(file_system: FileSystem, directory: str, records: Iterable[VersionedRecord], now_ms: int) -> None:
    """Write the file atomically and durably; only the owner may read it, because it holds SCRAM keys.

    Call it in a process with one thread only, as the umask applies to all threads. Raises KafkaStorageError.
    """
    delta = MetadataDelta(EMPTY_IMAGE)
    for record, _ in records:
        delta.replay(record)
    content = b"".join(build_snapshot(delta.build(0, 0, 0), now_ms))
    path = bootstrap_path(directory)
    file_system.unlink(path + ".tmp", missing_ok=True)  # left by a killed run, with that run's mode
    mask = os.umask(_FOR_OTHERS)
    try:
        file_system.replace_file(path, content)
    finally:
        os.umask(mask)


def read_bootstrap(file_system: FileSystem, directory: str) -> MetadataImage | None:
    """Return the image of the file's records, None if there is no file. Raises KafkaStorageError."""
    path = bootstrap_path(directory)
    if not file_system.exists(path):
        return None
    try:
        image = read_snapshot(read_batches(file_system, path), _AFTER_FIRST).image
    except (CorruptMessageError, UnsupportedVersionError) as error:
        raise KafkaStorageError(f"{path}: {error}") from error
    if METADATA_VERSION not in image.features:
        raise KafkaStorageError(f"{path} has no record of {METADATA_VERSION}")
    return image
