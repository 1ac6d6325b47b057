"""Configs of topics, brokers, groups and other resources, as the admin API describes and changes them at run time.

Sources of a value; the first one that has it wins:

    topic    the topic's own value -> the broker's key that gives its default, or the default if there is no such key
    broker   this node's dynamic value -> the cluster's dynamic value -> the static value -> the default
    loggers  set through the API -> as the process started (levels are not kept over restarts, nor are Kafka's)
    groups   set through the API -> the broker's ``group.<key>``, or the default if there is no such key
    client metrics   set through the API -> the default

Static values are those of ``server.properties`` and the other sources of ``broker/config/broker_config.py``. Where a
topic key has another name on the server (``log.retention.hours`` for ``retention.ms``), ``log/config.py`` says so.
Dynamic values are kept as texts, one record of the metadata log for each changed key. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.config.broker_config import BROKER_CONFIG_DEF, BrokerConfig, parse_texts, select_known_texts
from tidelog.broker.config.changes import Change, apply_changes, check_known
from tidelog.broker.config.cordoned import CORDONED_KEY, find_uncordonable
from tidelog.broker.config.description import CLUSTER_DEFAULT, ConfigDescriber, ConfigEntry, DynamicTexts
from tidelog.broker.config.dynamic_stores import DynamicStores
from tidelog.broker.config.keys.security import STORE_KEYS, store_key_of
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.controller.features import show_features
from tidelog.broker.controller.topics import validate_topic_name
from tidelog.broker.metadata.image import MetadataCache, TopicImage
from tidelog.broker.metadata.image_records import WITH_CORDONED, config_records
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE
from tidelog.log.config import TOPIC_CONFIG_DEF, LogConfig
from tidelog.protocol.config_def import ConfigDef, ConfigError
from tidelog.protocol.errors import (
    InvalidConfigError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController
    from tidelog.broker.controller.topics import TopicManager
    from tidelog.broker.metadata.delta import MetadataDelta
    from tidelog.broker.metadata.metadata_image import MetadataImage

logger = logging.getLogger(__name__)


class TopicDefaults(NamedTuple):
    """Defaults that topics inherit from the server's configuration; immutable."""

    values: Mapping[str, Any]
    config: LogConfig

    @classmethod
    def of(cls, config: BrokerConfig) -> TopicDefaults:
        """Return the defaults of the server's present configuration. Loop thread."""
        values = config.topic_defaults()
        return cls(values, LogConfig(values))


class TopicConfigs:
    """Configurations of topics' logs: a topic's own texts over the server's present defaults."""

    __slots__ = ("_config", "_defaults")

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._defaults = TopicDefaults.of(config)
        """Replaced as one object, by the loop thread alone. Other threads get the old defaults or the new ones."""

    @property
    def defaults(self) -> TopicDefaults:
        """The server's present defaults; another object after each change. Any thread."""
        return self._defaults

    def defaults_changed(self) -> None:
        """Take over the server's present configuration. Loop thread."""
        self._defaults = TopicDefaults.of(self._config)

    def log_config(self, image: TopicImage) -> LogConfig:
        """Return the values a topic's logs run with. Topics without configs of their own share one object. Any
        thread. Raises ConfigError for a value that this version does not accept.
        """
        defaults = self._defaults
        return LogConfig({**defaults.values, **image.configs}) if image.configs else defaults.config

    def validate(self, texts: Mapping[str, str]) -> None:
        """Raise InvalidConfigError, which names the key, unless a topic may have these configs of its own."""
        check_known(TOPIC_CONFIG_DEF, texts, "topic")
        LogConfig({**self._defaults.values, **texts})


class ConfigManager:
    """Describes and changes configurations at run time. Loop thread only."""

    __slots__ = (
        "_config",
        "_controller",
        "_describer",
        "_in_force",
        "_metadata",
        "_on_levels",
        "_texts",
        "_topic_configs",
        "_topics",
        "stores",
    )

    def __init__(
        self,
        config: BrokerConfig,
        controller: MetadataController,
        metadata: MetadataCache,
        topic_configs: TopicConfigs,
        topics: TopicManager,
        on_levels: Callable[[], object] = lambda: None,
    ) -> None:
        """``topics`` stores the topics' own configs; ``on_levels`` is called after a request that changes loggers'
        levels, or validates such a change.
        """
        self._on_levels = on_levels
        self._config = config
        self._controller = controller
        self._metadata = metadata
        self._texts = DynamicTexts()
        self._in_force: Mapping[str, str] = {}
        """The texts that the admin API has set for the cluster and this node, as they are in use."""
        self._describer = ConfigDescriber(config, self._texts)
        self._topic_configs = topic_configs
        self._topics = topics
        self.stores = DynamicStores(config, self._texts)

    def load(self) -> None:
        """Read what was set in former runs; called once, before the first request."""
        for (kind, name), texts in self._controller.image.configs.items():
            if kind != TOPIC_RESOURCE:
                self._show(ResourceType(kind), name, dict(texts))
        self._set_broker_texts()
        show_features(self._controller.image, self._metadata)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put committed configs of this node, the cluster, groups and client metrics in force.

        If this version does not accept a broker config, an error is logged and its former value stays in force: a
        cluster's controllers may be newer.
        """
        changed = [(ResourceType(kind), name) for kind, name in delta.configs.changed if kind != TOPIC_RESOURCE]
        for kind, name in changed:
            self._show(kind, name, dict(image.configs.get((kind, name), {})))
        if any(kind is ResourceType.BROKER for kind, _ in changed):
            try:
                self._set_broker_texts()
            except ConfigError as error:
                logger.error("cannot use a dynamic broker configuration, the former one stays in force: %s", error)
            else:
                self._topics.broker_defaults_changed()

    # Read by other parts

    def resource_texts(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        """Return the texts that were set on a group or a client metrics subscription."""
        return self._texts.of(kind, name)

    def resource_names(self, kind: ResourceType) -> list[str]:
        """List the resources of a kind: all topics, or the groups or client metrics that have configs of their own."""
        if kind is ResourceType.TOPIC:
            return sorted(self._metadata.topics)
        return sorted(name for other, name in self._texts.resources if other is kind)

    # Describe

    def describe(self, kind: int, name: str, keys: Collection[str] | None = None) -> list[ConfigEntry]:
        """Describe all keys of a resource, or only ``keys``.

        Raises UnknownTopicOrPartitionError, InvalidTopicError, InvalidRequestError (no such kind or broker). Source:
        DescribeConfigs.
        """
        if kind == ResourceType.TOPIC:
            image = self._metadata.topics.get(name)
            if image is None:
                validate_topic_name(name)
                raise UnknownTopicOrPartitionError
            return self.describe_topic(image, keys)
        if kind == ResourceType.BROKER:
            self._check_broker(name)
            return self._describer.broker(name, keys)
        if kind == ResourceType.BROKER_LOGGER:
            self._check_node(name)
            from tidelog.broker.config.logger_levels import describe_loggers

            return describe_loggers(keys)
        if kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
            return self._describer.resource(ResourceType(kind), name, keys)
        raise InvalidRequestError(f"Unsupported resource type: {kind}")

    def describe_topic(self, image: TopicImage, keys: Collection[str] | None = None) -> list[ConfigEntry]:
        """Describe a topic's keys; also for one that is only about to be created."""
        effective = self._topic_configs.log_config(image).values
        return self._describer.topic(image, effective, keys)

    # Change

    def replace(self, kind: int, name: str, texts: Mapping[str, str], validate_only: bool) -> None:
        """Replace all configs that were set on a resource by ``texts``; levels of loggers cannot be replaced. Raises
        KafkaErrors. Source: AlterConfigs.

        The change is in force when this returns, and durable with the metadata log's next sync: see
        ``broker/controller/topic_changes.py``.
        """
        self._change(kind, name, lambda _: dict(texts), validate_only)

    def alter(self, kind: int, name: str, changes: Iterable[Change], validate_only: bool) -> None:
        """Change single keys, as ``replace`` does. Raises KafkaErrors. Source: IncrementalAlterConfigs."""
        listed = list(changes)
        if kind == ResourceType.BROKER_LOGGER:
            self._check_node(name)
            from tidelog.broker.config.logger_levels import change_levels

            change_levels(listed, validate_only)
            self._on_levels()
            return
        config_def = self._config_def(kind)
        self._change(kind, name, lambda texts: apply_changes(config_def, texts, listed), validate_only)

    def _config_def(self, kind: int) -> ConfigDef:
        if kind == ResourceType.TOPIC:
            return TOPIC_CONFIG_DEF
        if kind == ResourceType.BROKER:
            return BROKER_CONFIG_DEF
        if kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
            from tidelog.broker.config.resources import CONFIG_DEFS

            return CONFIG_DEFS[ResourceType(kind)]
        return ConfigDef(())

    def _change(
        self, kind: int, name: str, change: Callable[[Mapping[str, str]], dict[str, str]], validate_only: bool
    ) -> None:
        if kind == ResourceType.TOPIC:
            self._change_topic(name, change, validate_only)
        elif kind == ResourceType.BROKER:
            self._check_broker(name)
            self._change_broker(name, change, validate_only)
        elif kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
            self._change_resource(ResourceType(kind), name, change, validate_only)
        else:
            raise InvalidRequestError(f"Unsupported resource type: {kind}")

    def _change_topic(
        self, name: str, change: Callable[[Mapping[str, str]], dict[str, str]], validate_only: bool
    ) -> None:
        if not name:
            raise InvalidRequestError("Default topic resources are not allowed.")
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        texts = change(image.configs)
        self._topic_configs.validate(texts)
        if not validate_only:
            self._topics.set_configs(name, texts)

    def _change_broker(
        self, name: str, change: Callable[[Mapping[str, str]], dict[str, str]], validate_only: bool
    ) -> None:
        old = self._texts.cluster if name == CLUSTER_DEFAULT else self._texts.node
        texts = change(old)
        check_dynamic(texts, old, is_default=name == CLUSTER_DEFAULT)
        self._config.check_change({key: text for key, text in texts.items() if old.get(key) != text})
        if CORDONED_KEY in texts:
            self._check_cordoned(texts[CORDONED_KEY], is_default=name == CLUSTER_DEFAULT)
        if validate_only:
            return
        self._commit(ResourceType.BROKER, name, texts)

    def _check_cordoned(self, text: str, *, is_default: bool) -> None:
        """Raise InvalidRequestError, InvalidConfigError unless these directories of this node may be cordoned."""
        if is_default:
            raise InvalidRequestError(f"Cannot update these configs at default cluster level: {CORDONED_KEY}")
        if self._controller.level < WITH_CORDONED:
            raise InvalidConfigError(f"{CORDONED_KEY} needs metadata.version 4.3-IV0")
        wrong = find_uncordonable(BROKER_CONFIG_DEF[CORDONED_KEY].parse(text), self._config.log_dirs)
        if wrong is not None:
            raise InvalidConfigError(f"{CORDONED_KEY}: {wrong} is not one of log.dirs")

    def _change_resource(
        self,
        kind: ResourceType,
        name: str,
        change: Callable[[Mapping[str, str]], dict[str, str]],
        validate_only: bool,
    ) -> None:
        from tidelog.broker.config.resources import validate

        if not name:
            raise InvalidRequestError("Default resources of this type are not allowed.")
        texts = change(self.resource_texts(kind, name))
        validate(kind, texts, self._config)
        if not validate_only:
            self._commit(kind, name, texts)

    def _commit(self, kind: ResourceType, name: str, texts: dict[str, str]) -> None:
        """Commit a resource's texts; ``publish`` shows them."""
        old = self._controller.image.configs.get((kind, name), {})
        self._controller.commit(config_records((kind, name), old, texts))

    def _show(self, kind: ResourceType, name: str, texts: dict[str, str]) -> None:
        if kind is not ResourceType.BROKER:
            if texts:
                self._texts.resources[kind, name] = texts
            else:
                self._texts.resources.pop((kind, name), None)
        elif name == CLUSTER_DEFAULT:
            self._texts.set_cluster(texts)
        elif name == str(self._config.node_id):
            self._texts.set_node(texts)

    def _set_broker_texts(self) -> None:
        """Put the texts in force. If this version does not accept a key's text, the former one stays, at a start the
        static one. So the broker starts, and the key can be changed. Kafka, too, logs an error and starts.
        """
        texts = {**self._texts.cluster, **self._texts.node}
        try:
            self._config.set_dynamic(texts)
        except ConfigError:
            texts = replace_refused(texts, self._in_force)
            self._config.set_dynamic(texts)
        self._in_force = texts
        self.stores.follow()
        self._topic_configs.defaults_changed()

    def _check_broker(self, name: str) -> None:
        if name != CLUSTER_DEFAULT:
            self._check_node(name)

    def _check_node(self, name: str) -> None:
        if name != str(self._config.node_id):
            raise InvalidRequestError(
                f"Unexpected broker id, expected {self._config.node_id} or empty string, but received {name}"
            )


def replace_refused(texts: Mapping[str, str], former: Mapping[str, str]) -> dict[str, str]:
    """Return the texts, each whose value this version does not accept replaced by the ``former`` one, or left out if
    there is none. Log an error for each.
    """
    usable = {}
    for key, text in texts.items():
        try:
            parse_texts(select_known_texts({key: text}))
        except ConfigError as error:
            logger.error("cannot use a dynamic broker configuration, the former one stays in force: %s", error)
            if key in former:
                usable[key] = former[key]
        else:
            usable[key] = text
    return usable


def check_dynamic(texts: Mapping[str, str], old: Mapping[str, str], *, is_default: bool) -> None:
    """Raise InvalidConfigError, InvalidRequestError unless a broker's texts may become these, with Kafka's messages.

    Unknown keys are accepted if their values stay the same: Apache Kafka set them before this node took over its log.
    """
    stores = {key: store for key in texts if (store := store_key_of(key)) is not None}
    kept = {key for key, text in texts.items() if key not in BROKER_CONFIG_DEF.keys and old.get(key) == text}
    others = {key: text for key, text in texts.items() if key not in stores and key not in kept}
    check_known(BROKER_CONFIG_DEF, others, "broker")
    if is_default and stores:
        raise InvalidRequestError(f"Cannot update these configs at default cluster level: {', '.join(sorted(stores))}")
    if base := sorted(STORE_KEYS & others.keys()):
        raise InvalidRequestError(
            f"These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{', '.join(base)}"
        )
    fixed = sorted(key for key in others if not BROKER_CONFIG_DEF[key].dynamic and others[key] != old.get(key))
    if fixed:
        raise InvalidRequestError(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    BROKER_CONFIG_DEF.parse_given(others)
    for key, store in stores.items():
        store.parse(texts[key])


def current_config(metadata: MetadataCache, configs: TopicConfigs, topic: str) -> LogConfig | None:
    """Return the configuration that a topic's logs open with, None when there is no such topic. Any thread. Raises
    ConfigError.
    """
    image = metadata.topics.get(topic)
    return None if image is None else configs.log_config(image)


def topic_of(kind: int, name: str) -> str | None:
    """Return the topic of a topic resource; None for a node, a group or another resource that has the name of a
    topic.
    """
    return name if kind == ResourceType.TOPIC else None
