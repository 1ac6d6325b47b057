"""Controller as the rest of a broker sees it: the newest image, and changes to it.

The embedded controller commits changes itself. In a member of a cluster the active controller is another process:
``image`` follows it, and ``commit`` is refused.

Either tells its publishers of each change. The records are committed before that, so an error in a publisher can refuse
nothing any more: it is logged with the publisher's name and counted, and those after it are told.

Source: MetadataLoader and the fault handler "metadata publishing" of Kafka 4.3, which is not fatal either.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.metadata_image import MetadataImage

logger = logging.getLogger(__name__)

ForwardedVersions = Mapping[int, tuple[int, int] | None]
"""Lowest and highest version of each API that is forwarded, as the active controller serves it; None: not at all."""


class Publisher(NamedTuple):
    """A part of the broker that follows the metadata: its name for the log, and the function that takes a change."""

    name: str
    publish: Callable[[MetadataDelta, MetadataImage], None]


class Publishers:
    """Publishers of one controller in their order, and how often one of them failed. Loop thread only."""

    __slots__ = ("_listed", "errors_total")

    def __init__(self) -> None:
        self._listed: list[Publisher] = []
        self.errors_total = 0
        """Kafka's ``metadata-apply-error-count``."""

    def subscribe(self, publisher: Publisher) -> None:
        """Tell ``publisher`` of each change from now on, after those that subscribed before."""
        self._listed.append(publisher)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Tell all of a change and the image it makes."""
        for publisher in self._listed:
            with self.noting_errors(publisher.name, image):
                publisher.publish(delta, image)

    @contextlib.contextmanager
    def noting_errors(self, name: str, image: MetadataImage) -> Iterator[None]:
        """Log and count an error of the part ``name``, and let it go no further."""
        try:
            yield
        except Exception as error:
            self.errors_total += 1
            reason = f"{type(error).__name__}: {error}"
            logger.exception("%s: the metadata up to offset %d are not taken over: %s", name, image.offset, reason)


class MetadataController(Protocol):
    """Source of the metadata image. Loop thread only, but for ``sync`` and ``take_snapshot``."""

    node_id: int
    publishers: Publishers
    """Parts that are told of each change."""

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

    def forwarded_versions(self) -> ForwardedVersions:
        """Return the versions of APIs that another controller answers; empty where this node answers all."""
        ...

    def commit(self, records: Iterable[VersionedRecord]) -> None:
        """Commit records, all or none. Raises KafkaStorageError, NotControllerError."""
        ...

    def when_synced(self) -> Deferred[None]:
        """Return a Deferred that settles, or fails, once all is durable that was committed before the call."""
        ...

    def sync(self) -> None:
        """Make durable what was committed before. Any thread. Raises KafkaStorageError."""
        ...

    def take_snapshot(self) -> bool:
        """Write a snapshot where the log is long enough. Any thread. Raises KafkaStorageError."""
        ...

    def close(self) -> None: ...
