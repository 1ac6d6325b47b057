"""Topics that a member has the active controller create: those that clients name, and the internal ones.

Nothing is created here. A client is told that the topic is unknown, or its coordinator not available, and asks again;
by then the image has it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.topic_changes import Change, NewTopic, TopicChanges
from tidelog.broker.controller.topics import TopicManager, internal_topic_settings, validate_topic_name
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.forwarding import Forwarder
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.envelope import DefaultPrincipalData

logger = logging.getLogger(__name__)

VERSION = 7
TIMEOUT_MS = 30_000
OWN_PRINCIPAL = DefaultPrincipalData(type="User", name="ANONYMOUS")
"""The principal of topics that no client's request stands for."""


class TopicCreation:
    """Topics that were asked for at the active controller and are not answered yet."""

    def __init__(self, config: BrokerConfig, forwarder: Forwarder) -> None:
        self._config = config
        self._forwarder = forwarder
        self._under_way: set[str] = set()

    def ensure(self, name: str) -> None:
        """Have an internal topic created, unless that is under way. Raises InvalidRequestError for another name."""
        partitions, replicas, configs = internal_topic_settings(self._config, name)
        self.create(NewTopic(name, partitions, replicas, configs))

    def create(self, new: NewTopic) -> None:
        """Have a topic created, unless that is under way."""
        if new.name in self._under_way or self._forwarder.is_full:
            return
        self._under_way.add(new.name)
        answer = self._forwarder.forward(memoryview(creation_request(new)), OWN_PRINCIPAL, "127.0.0.1")
        answer.on_done(partial(self._finish, new.name))

    def _finish(self, name: str, answer: Deferred[bytes]) -> None:
        self._under_way.discard(name)
        try:
            response = CreateTopicsResponse.decode(memoryview(answer.result())[5:], VERSION)
        except KafkaError as error:
            logger.warning("topic %s was not created: %s", name, error)
            return
        for topic in response.topics:
            if topic.error_code not in (0, TopicAlreadyExistsError.code):  # our image may be older than the topic
                logger.warning("topic %s was not created: %s", name, topic.error_message or topic.error_code)


def creation_request(new: NewTopic) -> bytes:
    """Return a CreateTopics request, header included."""
    topic = CreatableTopic(
        name=new.name,
        num_partitions=new.partitions,
        replication_factor=new.replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (new.configs or {}).items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
    header = RequestHeader(ApiKey.CREATE_TOPICS, VERSION, 0, "tidelog-member")
    return encode_request_header(header) + request.encode(VERSION)


class MemberTopicChanges(TopicChanges):
    """Changes of topics: creations that this broker's own parts ask for go to the active controller."""

    __slots__ = ("_creation",)

    def __init__(self, creation: TopicCreation, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._creation = creation

    def auto_create(self, name: str) -> Change:
        """Begin to create a topic that a client named. Raises UnknownTopicOrPartitionError: it is not there yet;
        InvalidTopicError."""
        validate_topic_name(name)
        if name in INTERNAL_TOPICS:
            self._creation.ensure(name)
        else:
            self._creation.create(NewTopic(name))
        raise UnknownTopicOrPartitionError

    def create(self, new: NewTopic) -> Change:
        """Begin to create a topic of a streams group. Raises UnknownTopicOrPartitionError: it is not there yet."""
        self._creation.create(new)
        raise UnknownTopicOrPartitionError


class MemberTopics(TopicManager):
    """Topics of the metadata image. What changes them is refused with NOT_CONTROLLER."""

    __slots__ = ("_creation",)

    creates_topics = False

    def __init__(self, creation: TopicCreation, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._creation = creation
        self.changes = MemberTopicChanges(creation, self, self._controller, self._listener, options["threads"])

    def ensure_internal_topic(self, name: str) -> TopicImage:
        """Begin to create an internal topic. Raises CoordinatorNotAvailableError: it is not there yet."""
        existing = self._metadata.topics.get(name)
        if existing is not None:
            return existing
        self._creation.ensure(name)
        raise CoordinatorNotAvailableError
