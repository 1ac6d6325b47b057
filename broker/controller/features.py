"""Feature levels (KIP-584): the range that this broker supports, and the level that is in force.

A feature is offered when the API that it needs is in the registry. A new node starts with the highest levels, but with
a metadata.version that every Kafka 4 can read. A directory that was formatted for a release begins with the levels of
that release, and a Kafka of that release can start on it, too. Clients may update levels; each update is a record of
the metadata log. The MetadataCache has the levels in force, with the log's offset as their epoch, because every new
connection asks for them. Loop thread only.

Source: MetadataVersion, Feature and the enums of its versions in Kafka 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.metadata.image import MetadataCache
from tidelog.broker.metadata.image_records import METADATA_VERSION, VersionedRecord
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, InvalidUpdateVersionError
from tidelog.protocol.metadata_records.records import FeatureLevelRecord

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeatureRange(NamedTuple):
    """The levels of a feature that this broker can work at."""

    lowest: int
    highest: int


# Feature -> range and the API, in this version or a later one, without which it is not offered.
_FEATURES = {
    "metadata.version": (FeatureRange(7, 30), ApiKey.API_VERSIONS, 0),  # 3.3-IV3 to 4.3-IV0
    "group.version": (FeatureRange(0, 1), ApiKey.CONSUMER_GROUP_HEARTBEAT, 0),
    "transaction.version": (FeatureRange(0, 2), ApiKey.END_TXN, 5),
    "share.version": (FeatureRange(0, 1), ApiKey.SHARE_GROUP_HEARTBEAT, 1),
    "streams.version": (FeatureRange(0, 1), ApiKey.STREAMS_GROUP_HEARTBEAT, 0),
}
_FIRST_LEVELS = {"metadata.version": 25}  # 4.0-IV3: every Kafka 4 reads it
RELEASES = {
    "3.9-IV0": 21,
    "4.0-IV0": 22, "4.0-IV1": 23, "4.0-IV2": 24, "4.0-IV3": 25,
    "4.1-IV0": 26, "4.1-IV1": 27,
    "4.2-IV0": 28, "4.2-IV1": 29,
    "4.3-IV0": 30,
}  # fmt: skip
"""Metadata version of a Kafka release -> its level. Each of these releases was tried on a directory of this broker."""
_BEGINNINGS = {
    "group.version": (22,),
    "transaction.version": (24, 24),
    "share.version": (28,),
    "streams.version": (29,),
}
"""Feature -> the levels of metadata.version from which Kafka gives the feature level 1, level 2 and so on."""
_CLUSTER_MIN_LEVEL = 25
"""Lowest level of metadata.version, 4.0-IV3, of a cluster that this broker can join."""
KRAFT_VERSION = "kraft.version"
_OTHER_FEATURES = {
    "eligible.leader.replicas.version": 1,  # a partition with one replica has none
    KRAFT_VERSION: 1,
}
"""Highest levels of features that clients are not offered, but that a directory or cluster of Kafka's may have."""


def supported_features() -> dict[str, FeatureRange]:
    """Return the features that this broker offers clients."""
    return {
        name: levels
        for name, (levels, api_key, version) in _FEATURES.items()
        if api_key in REGISTRY and REGISTRY[api_key].max_version >= version
    }


def offered_levels() -> dict[str, tuple[int, int]]:
    """Return the levels of each feature for a member's registration: lowest and highest."""
    others = {name: (0, highest) for name, highest in _OTHER_FEATURES.items()}
    ranges = {name: (levels.lowest, levels.highest) for name, levels in supported_features().items()}
    return others | ranges | {"metadata.version": (_CLUSTER_MIN_LEVEL, ranges["metadata.version"][1])}


def show_features(image: MetadataImage, metadata: MetadataCache) -> None:
    """Put the image's levels of offered features into the cache. A feature at level 0 is off and left out."""
    offered = supported_features()
    metadata.set_features({name: level for name, level in image.features.items() if name in offered}, image.offset)


def first_levels(image: MetadataImage) -> list[VersionedRecord]:
    """Return the records that give the features of a new node their first levels; metadata.version comes first. There
    are none if the image has levels.
    """
    if image.features:
        return []
    return [level_record(name, first_level(name)) for name in supported_features()]


def levels_of_release(release: str) -> dict[str, int]:
    """Return the levels of features that ``kafka-storage.sh format`` gives a directory of a release such as 4.1 or
    4.1-IV1; those at 0 are left out. Raises ValueError."""
    names = [name for name in RELEASES if name == release or name.startswith(f"{release}-")]
    if not names:
        raise ValueError(f"{release!r} is not one of {', '.join(RELEASES)}, nor a release such as 4.1")
    level = RELEASES[names[-1]]
    others = {name: sum(level >= begins for begins in levels) for name, levels in _BEGINNINGS.items()}
    return {METADATA_VERSION: level, **{name: found for name, found in others.items() if found}}


def first_level(name: str) -> int:
    """Return the level that a feature has on a new node."""
    return _FIRST_LEVELS.get(name, _FEATURES[name][0].highest)


def highest_level(name: str) -> int:
    """Return the highest level of a feature at which this broker can work, 0 for one it does not know."""
    offered = supported_features().get(name)
    return _OTHER_FEATURES.get(name, 0) if offered is None else offered.highest


def lowest_level(name: str) -> int:
    """Return the lowest level of an offered feature at which this broker can work."""
    return _FEATURES[name][0].lowest


def level_record(name: str, level: int) -> VersionedRecord:
    """Return the record that puts a feature at ``level``."""
    return VersionedRecord(FeatureLevelRecord(name=name, feature_level=level))


def check_update(metadata: MetadataCache, name: str, level: int, upgrade_type: int) -> VersionedRecord:
    """Return the record that puts a feature at ``level``.

    Raises InvalidUpdateVersionError, InvalidRequestError. Source: UpdateFeatures.
    """
    levels = supported_features().get(name)
    if levels is None:
        raise InvalidUpdateVersionError(
            f"Invalid update version {level} for feature {name}. Local controller does not support this feature."
        )
    if not levels.lowest <= level <= levels.highest:
        raise InvalidUpdateVersionError(
            f"Invalid update version {level} for feature {name}. Local controller only supports versions "
            f"{levels.lowest}-{levels.highest}"
        )
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise InvalidRequestError(f"Unknown upgrade type {upgrade_type} for feature {name}")
    current = metadata.features.get(name, 0)
    if level < current and upgrade_type == UPGRADE:
        raise InvalidUpdateVersionError(
            f"Invalid update version {level} for feature {name}. Can't downgrade the version of this feature without "
            "setting the upgrade type to either safe or unsafe downgrade."
        )
    if level > current and upgrade_type != UPGRADE:
        raise InvalidUpdateVersionError(
            f"Invalid update version {level} for feature {name}. Can't downgrade to a newer version."
        )
    return level_record(name, level)
