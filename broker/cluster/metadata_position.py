"""Position in the metadata that a member has acted upon: the quorum's epoch and the offset of the last record.

A quorum that was restored from a backup may know less. A broker that joined it would lead and truncate by what others
forgot. So a start waits for a quorum that has the position, and then gives up. Sans-io.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.metadata.metadata_image import MetadataImage


class MetadataPosition(NamedTuple):
    """Epoch and offset of the newest image that was acted upon."""

    epoch: int
    offset: int

    def shortfall(self, image: MetadataImage) -> str:
        """Return what a caught-up quorum lacks, in one line; nothing where it lacks nothing."""
        if image.epoch >= self.epoch and image.offset >= self.offset:
            return ""
        return (
            f"this broker has acted upon metadata up to offset {self.offset} of epoch {self.epoch}, and the quorum has "
            f"offset {image.offset} of epoch {image.epoch}: it was restored from a backup, or is another one"
        )

    def after(self, image: MetadataImage) -> MetadataPosition:
        """Return the position once an image was acted upon."""
        return max(self, MetadataPosition(image.epoch, image.offset))


NOWHERE = MetadataPosition(-1, -1)
"""The position of a broker that has not been in a cluster."""
