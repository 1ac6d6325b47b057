"""Controller as the rest of a broker sees it: the newest image, and changes to it.

The embedded controller commits changes itself. In a member of a cluster the active controller is another process:
``image`` follows it, and ``commit`` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.metadata_image import MetadataImage

Publisher = Callable[[MetadataDelta, MetadataImage], None]


class MetadataController(Protocol):
    """Source of the metadata image. Loop thread only, but for ``sync`` and ``take_snapshot``."""

    node_id: int

    @property
    def image(self) -> MetadataImage: ...

    @property
    def epoch(self) -> int:
        """Epoch of the quorum's leader."""
        ...

    @property
    def end_offset(self) -> int:
        """Offset after the last record of the image."""
        ...

    @property
    def level(self) -> int:
        """Level of metadata.version in force."""
        ...

    @property
    def deletions(self) -> Mapping[bytes, str]:
        """Ids and names of deleted topics whose logs may still be there."""
        ...

    def subscribe(self, publisher: Publisher) -> None:
        """Call ``publisher`` with each change and the image it makes, after those that subscribed before."""
        ...

    def commit(self, records: Iterable[VersionedRecord]) -> None:
        """Commit records, all or none. Raises KafkaStorageError, NotControllerError."""
        ...

    def when_synced(self) -> Deferred[None]:
        """Return what settles once all is durable that was committed before the call; it may fail with a KafkaError."""
        ...

    def sync(self) -> None:
        """Make durable what was committed before. Any thread. Raises KafkaStorageError."""
        ...

    def take_snapshot(self) -> bool:
        """Write a snapshot where the log is long enough. Any thread. Raises KafkaStorageError."""
        ...

    def close(self) -> None: ...
