"""Descriptions of configs: every key with its value, the value's source, and what each source gives (synonyms).

The module docstring of ``broker/controller/configs.py``, which makes changes, lists the sources of a value. Loop thread
only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from tidelog.broker.config.broker_config import BROKER_CONFIG_DEF, BrokerConfig
from tidelog.broker.config.keys.security import store_key_of
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.metadata.image import TopicImage
from tidelog.log.config import SYNONYMS, TOPIC_CONFIG_DEF
from tidelog.protocol.config_def import ConfigKey

CLUSTER_DEFAULT = ""  # the resource name that stands for all brokers
UNKNOWN_TYPE = 0  # Kafka's type of a key that no table declares


class ConfigSource(IntEnum):
    """Source of a config's value, as numbered on the wire."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigSynonym(NamedTuple):
    """One source of a value, and the value that it gives."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A described key: its value in force, the value's source, and all sources (synonyms), the one in force first."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    synonyms: list[ConfigSynonym]
    type: int
    documentation: str


class DynamicTexts:
    """Texts that were set through the admin API: for all brokers (``cluster``), this broker (``node``), groups and
    client metrics (``resources``). A topic's texts are in its image.
    """

    __slots__ = ("cluster", "node", "resources")

    def __init__(self) -> None:
        self.cluster: dict[str, str] = {}
        self.node: dict[str, str] = {}
        self.resources: dict[tuple[ResourceType, str], dict[str, str]] = {}

    def set_cluster(self, texts: dict[str, str]) -> None:
        """Replace the texts of all brokers."""
        self.cluster = texts

    def set_node(self, texts: dict[str, str]) -> None:
        """Replace the texts of this broker."""
        self.node = texts

    def of(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        """Return the texts that were set on a group or a client metrics subscription."""
        return self.resources.get((kind, name), {})


class ConfigDescriber:
    """Describes topics, brokers, groups and client metrics subscriptions; changes none of them."""

    __slots__ = ("_config", "_texts")

    def __init__(self, config: BrokerConfig, texts: DynamicTexts) -> None:
        self._config = config
        self._texts = texts

    def topic(self, image: TopicImage, effective: Mapping[str, Any], keys: Collection[str] | None) -> list[ConfigEntry]:
        """Describe a topic's keys, or only ``keys``; ``effective`` are the values in force."""
        return [
            self._topic_entry(key, image, effective) for key in TOPIC_CONFIG_DEF if keys is None or key.name in keys
        ]

    def _topic_entry(self, key: ConfigKey, image: TopicImage, effective: Mapping[str, Any]) -> ConfigEntry:
        synonyms = []
        if key.name in image.configs:
            synonyms.append(ConfigSynonym(key.name, image.configs[key.name], ConfigSource.DYNAMIC_TOPIC))
        for synonym in SYNONYMS.get(key.name, ()):
            synonyms += self._broker_synonyms(BROKER_CONFIG_DEF[synonym.server_key])
        if key.name not in SYNONYMS:
            synonyms.append(ConfigSynonym(key.name, key.to_text(key.default), ConfigSource.DEFAULT))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        is_secret = is_hidden(synonyms)
        return entry_of(key, key.to_text(effective[key.name]), source, synonyms, is_secret=is_secret)

    def broker(self, name: str, keys: Collection[str] | None) -> list[ConfigEntry]:
        """Describe this broker's keys, or those that are set for all brokers."""
        if name == CLUSTER_DEFAULT:
            return [self._cluster_entry(key) for key in self._texts.cluster if keys is None or key in keys]
        stores = {
            key: build_listener_key(store, key) for key in self._texts.node if (store := store_key_of(key)) is not None
        }
        given = {**BROKER_CONFIG_DEF.keys, **stores}
        return [self._broker_entry(key) for key in given.values() if keys is None or key.name in keys]

    def _cluster_entry(self, name: str) -> ConfigEntry:
        """Describe a key that is set for all brokers; an unknown key is described without its value, as in Kafka."""
        source, key = ConfigSource.DYNAMIC_DEFAULT_BROKER, BROKER_CONFIG_DEF.keys.get(name)
        if key is None:
            return ConfigEntry(name, None, source, False, True, [ConfigSynonym(name, None, source)], UNKNOWN_TYPE, "")
        text = None if self._is_secret(key) else self._texts.cluster[name]
        return entry_of(key, text, source, [ConfigSynonym(name, text, source)], is_secret=text is None)

    def _broker_entry(self, key: ConfigKey) -> ConfigEntry:
        synonyms = self._broker_synonyms(key)
        for other in unit_synonyms(key.name):
            synonyms += self._broker_synonyms(BROKER_CONFIG_DEF[other])
        source = synonyms[0].source if synonyms and synonyms[0].name == key.name else ConfigSource.DEFAULT
        value = key.to_text(self._config.get(key.name)) if key.name in BROKER_CONFIG_DEF else synonyms[0].value
        is_secret = is_hidden(synonyms)
        return entry_of(key, value, source, synonyms, read_only=not key.dynamic, is_secret=is_secret)

    def _broker_synonyms(self, key: ConfigKey) -> list[ConfigSynonym]:
        """List the sources that set a server key, the most specific first; its default, if it has one, is the last."""
        levels = (
            (self._texts.node, ConfigSource.DYNAMIC_BROKER),
            (self._texts.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self._config.static_texts, ConfigSource.STATIC_BROKER),
        )
        synonyms = [
            ConfigSynonym(key.name, None if self._is_secret(key) else texts[key.name], source)
            for texts, source in levels
            if key.name in texts
        ]
        if key.default is not None:
            synonyms.append(ConfigSynonym(key.name, key.to_text(key.default), ConfigSource.DEFAULT))
        return synonyms

    def _is_secret(self, key: ConfigKey) -> bool:
        """Return whether a server key's value is never shown."""
        return key.is_sensitive or key.name in self._config.resolved.keys

    def resource(self, kind: ResourceType, name: str, keys: Collection[str] | None) -> list[ConfigEntry]:
        """Describe the keys of a group or a client metrics subscription; none for a subscription that does not
        exist.
        """
        from tidelog.broker.config.resources import CONFIG_DEFS

        texts = self._texts.of(kind, name)
        own = ConfigSource.GROUP if kind is ResourceType.GROUP else ConfigSource.CLIENT_METRICS
        if kind is ResourceType.CLIENT_METRICS and not texts:
            return []
        entries = []
        for key in CONFIG_DEFS[kind]:
            if keys is not None and key.name not in keys:
                continue
            default = key.to_text(self._group_default(key))
            synonyms = [ConfigSynonym(key.name, texts[key.name], own)] if key.name in texts else []
            default_name = f"group.{key.name}" if kind is ResourceType.GROUP else key.name
            is_secret = default_name in self._config.resolved.keys
            synonyms.append(ConfigSynonym(default_name, None if is_secret else default, ConfigSource.DEFAULT))
            entries.append(entry_of(key, synonyms[0].value, synonyms[0].source, synonyms, is_secret=is_secret))
        return entries

    def _group_default(self, key: ConfigKey) -> Any:
        """Return the default of a group's key: the value of the broker's ``group.<key>``, if there is such a key."""
        broker_key = f"group.{key.name}"
        return self._config.get(broker_key) if broker_key in BROKER_CONFIG_DEF else key.default


def build_listener_key(key: ConfigKey, name: str) -> ConfigKey:
    """Return the declaration of a listener's own key: without a default, and dynamic."""
    return ConfigKey(name, key.type, None, key.validator, key.importance, key.doc, dynamic=True)


def is_hidden(synonyms: list[ConfigSynonym]) -> bool:
    """Return whether the value in force is secret."""
    return bool(synonyms) and synonyms[0].source is not ConfigSource.DEFAULT and synonyms[0].value is None


def entry_of(
    key: ConfigKey,
    value: str | None,
    source: ConfigSource,
    synonyms: list[ConfigSynonym],
    *,
    read_only: bool = False,
    is_secret: bool = False,
) -> ConfigEntry:
    """Describe a key; one that is sensitive, or whose value came from a secret, is described without its value."""
    is_secret = is_secret or key.is_sensitive
    shown = None if is_secret else value
    return ConfigEntry(key.name, shown, source, read_only, is_secret, synonyms, int(key.type), key.doc)


def unit_synonyms(server_key: str) -> list[str]:
    """Return the server keys that apply if this one is not set, mostly in coarser units: hours for
    milliseconds."""
    for synonyms in SYNONYMS.values():
        names = [synonym.server_key for synonym in synonyms]
        if server_key in names:
            return names[names.index(server_key) + 1 :]
    return []
