"""Controller interface of a member (a broker of a KRaft cluster): the newest published image; changes are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tidelog.broker.controller.metadata_controller import ForwardedVersions, Publishers
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import METADATA_VERSION, VersionedRecord
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.protocol.errors import NotControllerError


class RemoteController:
    """The image of the quorum's committed metadata. Loop thread only."""

    __slots__ = ("forwarded_versions", "image", "node_id", "publishers")

    def __init__(
        self, image: MetadataImage, node_id: int, forwarded_versions: Callable[[], ForwardedVersions] = dict
    ) -> None:
        self.forwarded_versions = forwarded_versions
        """Returns the versions of forwarded APIs that the active controller serves."""
        self.image = image
        self.node_id = node_id
        self.publishers = Publishers()

    @property
    def epoch(self) -> int:
        """Epoch in which the image's last record was appended."""
        return self.image.epoch

    @property
    def end_offset(self) -> int:
        """Offset after the last record of the image."""
        return self.image.offset + 1

    @property
    def level(self) -> int:
        """Level of metadata.version in force."""
        return self.image.features[METADATA_VERSION]

    @property
    def deletions(self) -> Mapping[bytes, str]:
        """No deletions: a member finds the logs of deleted topics by their topic ids."""
        return {}

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Replace the image by the next one, and call the publishers."""
        self.image = image
        self.publishers.publish(delta, image)

    def commit(self, records: Iterable[VersionedRecord]) -> None:
        """Raise NotControllerError: the active controller makes changes, and requests for them are forwarded to it."""
        raise NotControllerError

    def when_synced(self) -> Deferred[None]:
        """Return a settled Deferred: what is in the image is committed."""
        return deferred_value(None)

    def sync(self) -> None:
        """Do nothing: what is in the image is committed. Any thread."""

    def take_snapshot(self) -> bool:
        """Return False: a member keeps no metadata log. Any thread."""
        return False

    def close(self) -> None:
        """Close nothing."""
