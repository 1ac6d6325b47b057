"""Topics that a member asks the active controller to create: those that clients name, those of streams groups and the
schema registry, and the internal ones.

A member creates no topic itself. Clients get UNKNOWN_TOPIC_OR_PARTITION or COORDINATOR_NOT_AVAILABLE and ask
again until the image has the topic. This broker has checked the client's permission, as the controllers see the
broker's own principal. Source: AutoTopicCreationManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from tidelog.broker.cluster.quorum import QuorumView
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.topic_changes import AuditCreation, Change, NewTopic, TopicChanges
from tidelog.broker.controller.topics import TopicManager, internal_topic_settings, validate_topic_name
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.protocol.errors import (
    NONE,
    CoordinatorNotAvailableError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

logger = logging.getLogger(__name__)

TIMEOUT_MS = 30_000
RETRY_S = 0.1
MAX_UNDER_WAY = 1000
"""Largest number of topics that wait for the active controller; the client of one more has to ask again."""


class TopicCreation:
    """Requests for topics that the active controller has not answered yet. Loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        channel: Channel,
        quorum: QuorumView,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``channel`` is used by nothing else; ``start`` runs a task until this broker stops."""
        self._config = config
        self._channel = channel
        self._quorum = quorum
        self._start = start
        self._asking = asyncio.Lock()
        self._under_way: set[str] = set()

    def ensure(self, name: str, created: AuditCreation | None = None) -> None:
        """Ask for an internal topic, as ``create`` does. Raises InvalidRequestError for another name."""
        partitions, replicas, configs = internal_topic_settings(self._config, name)
        self.create(NewTopic(name, partitions, replicas, configs), created)

    def create(self, new: NewTopic, created: AuditCreation | None = None) -> None:
        """Ask for a topic, unless it is asked for already or MAX_UNDER_WAY topics wait. ``created`` is called when the
        controller has created it.
        """
        if new.name in self._under_way or len(self._under_way) >= MAX_UNDER_WAY:
            return
        self._under_way.add(new.name)
        self._start(self._create(new, created))

    async def _create(self, new: NewTopic, created: AuditCreation | None) -> None:
        """Ask until the controller has decided, or TIMEOUT_MS is over."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TIMEOUT_MS / 1000
        try:
            async with self._asking:
                failure = await self._ask(new, created)
                while failure and loop.time() < until_s:
                    await asyncio.sleep(RETRY_S)
                    failure = await self._ask(new, created)
            if failure:
                logger.warning("topic %s was not created: %s", new.name, failure)
        finally:
            self._under_way.discard(new.name)

    async def _ask(self, new: NewTopic, created: AuditCreation | None) -> str:
        """Ask the active controller; return why it must be asked again, an empty text once it has decided."""
        try:
            answer = await self._channel.ask(self._quorum.address, creation_request(new), CreateTopicsResponse)
        except ChannelError as error:
            return str(error)
        for topic in answer.topics:
            if topic.error_code == NotControllerError.code:
                return NotControllerError.default_message
            # A topic that exists already may be newer than the image of this broker.
            if topic.error_code not in (NONE, TopicAlreadyExistsError.code):
                logger.warning("topic %s was not created: %s", new.name, topic.error_message or topic.error_code)
            if topic.error_code == NONE and created is not None:
                created()
        return ""


def creation_request(new: NewTopic) -> CreateTopicsRequest:
    """Return the request for a topic."""
    topic = CreatableTopic(
        name=new.name,
        num_partitions=new.partitions,
        replication_factor=new.replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (new.configs or {}).items()],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)


class MemberTopicChanges(TopicChanges):
    """Changes of topics: this broker asks the active controller to create the topics that it needs."""

    __slots__ = ("_creation",)

    def __init__(self, creation: TopicCreation, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._creation = creation

    def auto_create(self, name: str, created: AuditCreation | None = None) -> Change:
        """Begin to create a topic that a client named. Raises UnknownTopicOrPartitionError, as it does not exist yet,
        or InvalidTopicError.
        """
        validate_topic_name(name)
        if name in INTERNAL_TOPICS:
            self._creation.ensure(name, created)
        else:
            self._creation.create(NewTopic(name), created)
        raise UnknownTopicOrPartitionError

    def create(self, new: NewTopic, created: AuditCreation | None = None) -> Change:
        """Begin to create a topic of a streams group or of the schema registry. Raises UnknownTopicOrPartitionError, as
        it does not exist yet.
        """
        self._creation.create(new, created)
        raise UnknownTopicOrPartitionError


class MemberTopics(TopicManager):
    """Topics of the metadata image. Changes are refused with NOT_CONTROLLER, except the creations that the active
    controller is asked for.
    """

    __slots__ = ("_creation",)

    creates_topics = False

    def __init__(self, creation: TopicCreation, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._creation = creation
        shared = self, self._controller, self._listener, options["threads"], options["forget"]
        self.changes = MemberTopicChanges(creation, *shared)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Do nothing: the MetadataPublisher shows a member's topics, once their logs exist."""

    def ensure_internal_topic(self, name: str) -> TopicImage:
        """Return an internal topic. If it does not exist, begin to create it and raise CoordinatorNotAvailableError.
        Raises InvalidRequestError for another name.
        """
        existing = self._metadata.topics.get(name)
        if existing is not None:
            return existing
        self._creation.ensure(name)
        raise CoordinatorNotAvailableError
