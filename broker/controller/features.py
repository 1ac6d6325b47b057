"""Feature levels (KIP-584): the range that this broker supports, and the level that is in force.

A feature is offered when its APIs are in the registry. Until a client updates a level it is the highest, so that
clients get all there is; updated levels are kept in the store under ``/features/<name>``. The levels in force stand in
the MetadataCache, with the store's revision as their epoch, because every new connection asks for them. Loop thread
only.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.metadata.image import MetadataCache
from tidelog.broker.metadata.store import MetadataStore, Put
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, InvalidUpdateVersionError

FEATURES_PREFIX = "/features/"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeatureRange(NamedTuple):
    """The levels of a feature that this broker can work at."""

    lowest: int
    highest: int


# Feature -> range and the API, in this version or a later one, without which it is not offered.
_FEATURES = {
    "metadata.version": (FeatureRange(7, 25), ApiKey.API_VERSIONS, 0),  # 3.3-IV3 to 4.0-IV3
    "group.version": (FeatureRange(0, 1), ApiKey.CONSUMER_GROUP_HEARTBEAT, 0),
    "transaction.version": (FeatureRange(0, 2), ApiKey.END_TXN, 5),
    "share.version": (FeatureRange(0, 1), ApiKey.SHARE_GROUP_HEARTBEAT, 1),
    "streams.version": (FeatureRange(0, 1), ApiKey.STREAMS_GROUP_HEARTBEAT, 0),
}


def supported_features() -> dict[str, FeatureRange]:
    """Return the features that this broker offers."""
    return {
        name: levels
        for name, (levels, api_key, version) in _FEATURES.items()
        if api_key in REGISTRY and REGISTRY[api_key].max_version >= version
    }


def show_features(store: MetadataStore, metadata: MetadataCache) -> None:
    """Show the stored levels, else the highest, in the cache. A feature at level 0 is off and left out."""
    stored = {entry.key.removeprefix(FEATURES_PREFIX): int(entry.value) for entry in store.list(FEATURES_PREFIX)}
    levels = {name: stored.get(name, levels.highest) for name, levels in supported_features().items()}
    metadata.set_features({name: level for name, level in levels.items() if level > 0}, store.revision)


def check_update(metadata: MetadataCache, name: str, level: int, upgrade_type: int) -> Put:
    """Check an update and return the change of the store that sets a feature to ``level``.

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
    return Put(FEATURES_PREFIX + name, str(level).encode())
