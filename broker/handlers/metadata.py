"""Metadata: the brokers, and each partition's leader and replicas.

Versions
  0      an empty list of topics asks for all
  1+     null asks for all, an empty list for none; controller and internal flag
  2+     cluster id          4+  the client says whether a topic may be created      7+  leader epochs
  8+     authorized operations (KIP-430); those of the cluster only up to 10
  10+    topic ids in answers    12+  topics may be asked for by id (KIP-516)    13  an error code for the whole answer

A topic that does not exist is created when both ``auto.create.topics.enable`` and the client say so. A lone node
answers when the topic exists. A member of a cluster answers UNKNOWN_TOPIC_OR_PARTITION at first, as Kafka does.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.controller.topic_changes import Change
from tidelog.broker.controller.topics import validate_topic_name
from tidelog.broker.loop.steps import Steps, apply_each, strip_traceback
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
from tidelog.broker.security.changes import note_change
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidRequestError,
    KafkaError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.protocol.types import ZERO_UUID

API_KEY = ApiKey.METADATA
MIN_VERSION = 0
MAX_VERSION = 13
Request = MetadataRequest

FIRST_VERSION_BY_ID = 12
MAX_AUTO_CREATED = 1_000
"""Largest number of topics that one request creates. Clients ask again for unknown topics, and then the next ones are
created."""

Outcomes = dict[str, "Change | KafkaError"]
"""Topics that a request names and that do not exist: name -> the change that creates the topic, or the error."""


def handle(broker: Broker, context: RequestContext, request: MetadataRequest) -> Steps[MetadataResponse]:
    """Answer from the metadata cache, after creating the missing topics that may be created."""
    topics = request.topics
    if topics is None or (context.api_version == 0 and not topics):
        images = list(broker.metadata.topics.values())
        return respond(broker, context, request, (yield from apply_each(images, partial(describe, broker, request))))
    check_topic_ids(topics, context.api_version)
    once = {(topic.topic_id, topic.name): topic for topic in topics}.values()
    outcomes: Outcomes = {}
    room = MAX_AUTO_CREATED
    for topic in once:
        yield None
        if topic.topic_id == ZERO_UUID and broker.metadata.find(topic.name or "") is None:
            outcome = create(broker, context, request, topic.name or "") if room else UnknownTopicOrPartitionError()
            outcomes[topic.name or ""] = outcome
            room -= isinstance(outcome, Change)
    for outcome in outcomes.values():
        yield outcome.done if isinstance(outcome, Change) else None
    answers = yield from apply_each(once, lambda topic: answer(broker, context, request, topic, outcomes))
    return respond(broker, context, request, answers)


def respond(
    broker: Broker, context: RequestContext, request: MetadataRequest, answers: list[MetadataResponseTopic]
) -> MetadataResponse:
    """Answer with the brokers and these topics."""
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in broker.nodes.alive_nodes(context)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes.controller_id,
        topics=answers,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def check_topic_ids(topics: list[MetadataRequestTopic], version: int) -> None:
    """Raise InvalidRequestError for topics without a name or with an id, if the version has no topics by id."""
    if version < FIRST_VERSION_BY_ID:
        for topic in topics:
            if topic.name is None:
                raise InvalidRequestError(f"Metadata version {version} has no topics without a name")
            if topic.topic_id != ZERO_UUID:
                raise InvalidRequestError(f"Metadata version {version} has no topics by id")


def answer(
    broker: Broker, context: RequestContext, request: MetadataRequest, topic: MetadataRequestTopic, outcomes: Outcomes
) -> MetadataResponseTopic:
    """Describe one requested topic, found by id if it has one, else by name; errors become the topic's code."""
    try:
        if topic.topic_id != ZERO_UUID:
            image = broker.metadata.topic_by_id(topic.topic_id)
            if image is None:
                raise UnknownTopicIdError
        else:
            image = find(broker, topic.name or "", outcomes)
    except KafkaError as error:
        name = topic.name
        if name is None and context.api_version < FIRST_VERSION_BY_ID:
            name = ""
        asked = request.include_topic_authorized_operations and name is not None
        operations = TOPIC_OPERATIONS if asked else NOT_REQUESTED
        return MetadataResponseTopic(
            error_code=error.code, name=name, topic_id=topic.topic_id, topic_authorized_operations=operations
        )
    return describe(broker, request, image)


def create(broker: Broker, context: RequestContext, request: MetadataRequest, name: str) -> Change | KafkaError:
    """Begin to create a topic that does not exist; return the error when it may not be created."""
    allowed = request.allow_auto_topic_creation or context.api_version < 4
    try:
        if not (allowed and broker.config.get_bool("auto.create.topics.enable")):
            validate_topic_name(name)
            return UnknownTopicOrPartitionError()
        return broker.topics.changes.auto_create(name, partial(note_named, context, name))
    except TopicAlreadyExistsError:  # its name is not free until its deletion ends
        return UnknownTopicOrPartitionError()
    except KafkaError as error:
        return strip_traceback(error)


def note_named(context: RequestContext, name: str) -> None:
    """Write the audit line of a topic that was created because this client named it."""
    note_change("topic created", context, name=name, is_automatic=True)


def find(broker: Broker, name: str, outcomes: Outcomes) -> TopicImage:
    """Return the topic of this name. Raises the error of its creation, UnknownTopicOrPartitionError."""
    image = broker.metadata.find(name)
    if image is not None:
        return image
    outcome = outcomes.get(name)
    if isinstance(outcome, KafkaError):
        raise outcome
    if outcome is not None:
        outcome.done.result()
    raise UnknownTopicOrPartitionError


def describe(broker: Broker, request: MetadataRequest, image: TopicImage) -> MetadataResponseTopic:
    """Describe a topic that exists."""
    return MetadataResponseTopic(
        name=image.name,
        topic_id=image.topic_id,
        is_internal=image.is_internal,
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=offline,
                error_code=0 if state.leader != NO_LEADER else LeaderNotAvailableError.code,
            )
            for index, (state, offline) in enumerate(
                zip(image.partitions, broker.nodes.offline_replicas(image.partitions), strict=False)
            )
        ],
        topic_authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_REQUESTED,
    )


def error_response(request: MetadataRequest, error: KafkaError) -> Steps[MetadataResponse]:
    """Answer every topic of the request with the error's code; version 13 has the code for the whole answer too."""
    topics = yield from apply_each(
        request.topics or (),
        lambda topic: MetadataResponseTopic(error_code=error.code, name=topic.name or "", topic_id=topic.topic_id),
    )
    return MetadataResponse(topics=topics, error_code=error.code)
