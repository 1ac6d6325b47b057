"""Interface of a controller to the rest of the broker: the newest image, and commits that change it.

The embedded controller commits changes itself. In a member of a cluster the active controller is another process:
``image`` follows it, and ``commit`` is refused.

Both kinds of controller call their publishers with each change. The records are committed by then, so an error in a
publisher cannot refuse the change: it is logged with the publisher's name and counted, and the next publishers are
called.

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
"""Forwarded API -> lowest and highest version that the active controller serves; None if it does not serve the API."""


class Publisher(NamedTuple):
    """A part of the broker that follows the metadata: its name in log lines, and the function that applies a change."""

    name: str
    publish: Callable[[MetadataDelta, MetadataImage], None]


class Publishers:
    """Publishers of one controller in the order of their calls, and the number of their errors. Loop thread only."""

    __slots__ = ("_listed", "errors_total")

    def __init__(self) -> None:
        self._listed: list[Publisher] = []
        self.errors_total = 0
        """Kafka's ``metadata-apply-error-count``."""

    def subscribe(self, publisher: Publisher) -> None:
        """Call ``publisher`` for each change from now on, after those that subscribed earlier."""
        self._listed.append(publisher)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Call all publishers with a change and the image that it leads to."""
        for publisher in self._listed:
            with self.note_errors(publisher.name, image):
                publisher.publish(delta, image)

    @contextlib.contextmanager
    def note_errors(self, name: str, image: MetadataImage) -> Iterator[None]:
        """Suppress an exception of the publisher ``name`` in the block: log and count it."""
        try:
            yield
        except Exception as error:
            self.errors_total += 1
            reason = f"{type(error).__name__}: {error}"
            logger.exception("%s: cannot apply the metadata up to offset %d: %s", name, image.offset, reason)


class MetadataController(Protocol):
    """Source of the metadata image. Loop thread only, except ``sync`` and ``take_snapshot``."""

    node_id: int
    publishers: Publishers
    """Parts of the broker that are called with each change."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def epoch(self) -> int:
        """Epoch of the quorum's leader."""
        ...

    @property
    def end_offset(self) -> int:
        """Offset that the next record gets, as far as this node knows."""
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
        """Return the versions of APIs that another controller serves; empty if this node serves all, or as long as the
        versions are not known."""
        ...

    def commit(self, records: Iterable[VersionedRecord]) -> None:
        """Commit records, all or none. Raises what ``EmbeddedController.commit`` raises; in a member of a cluster,
        NotControllerError.
        """
        ...

    def when_synced(self) -> Deferred[None]:
        """Return a Deferred that settles once everything committed before the call is durable; it fails if a sync
        fails.
        """
        ...

    def sync(self) -> None:
        """Make everything that was committed before the call durable. Any thread. Raises KafkaStorageError."""
        ...

    def take_snapshot(self) -> bool:
        """Write a snapshot if the log is long enough; return whether it did. Any thread. Raises KafkaStorageError."""
        ...

    def close(self) -> None: ...
