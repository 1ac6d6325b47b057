"""Streams groups, as handlers call them: members, descriptions, and the creation of internal topics (KIP-1071).

A heartbeat that finds repartition or changelog topics missing begins to create them, and does not wait for them. If the
client may not create one of them, none is created. If creations are refused at once, the response says so; a later
failure is only logged. The next heartbeat tries again. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.controller.topic_changes import USE_DEFAULT, NewTopic
from tidelog.broker.controller.topics import validate_topic_name
from tidelog.broker.coordinator.group.classic.rebalance import append_error_for_client
from tidelog.broker.coordinator.group.streams.describe import describe_streams_group
from tidelog.broker.coordinator.group.streams.group import StreamsGroup
from tidelog.broker.coordinator.group.streams.topology import InternalTopic, StatusCode, refused_names, topology_of
from tidelog.broker.metadata.image import INTERNAL_TOPICS
from tidelog.broker.security.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from tidelog.broker.security.changes import note_change
from tidelog.protocol.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    KafkaError,
    StreamsInvalidTopologyError,
    TopicAlreadyExistsError,
)
from tidelog.protocol.messages.streams_group_describe import DescribedGroup
from tidelog.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.controller.topic_changes import TopicChanges
    from tidelog.broker.coordinator.group.shard import GroupShard
    from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
    from tidelog.broker.loop.deferred import Deferred
    from tidelog.broker.metadata.image import TopicImage
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.security.authorization.authorizer import Authorizer

logger = logging.getLogger(__name__)

SHOWN_ERRORS = 3
"""Largest number of topics whose errors are in the text of a status; of the others the text has the number."""


class StreamsMembers:
    """Answers requests of streams groups over all partitions of ``__consumer_offsets``."""

    def __init__(
        self, runtime: CoordinatorRuntime[GroupShard], topics: TopicChanges, authorizer: Authorizer | None = None
    ) -> None:
        self._runtime = runtime
        self._topics = topics
        self._authorizer = authorizer

    def heartbeat(
        self, context: RequestContext, request: StreamsGroupHeartbeatRequest
    ) -> Deferred[StreamsGroupHeartbeatResponse]:
        """Answer StreamsGroupHeartbeat v0."""
        if request.topology is not None:
            refused = refused_names(topology_of(request.topology), INTERNAL_TOPICS.__contains__, validate_topic_name)
            if refused is not None:
                raise StreamsInvalidTopologyError(refused)
        shard = self._runtime.shard_for(request.group_id)
        decision = shard.streams.heartbeat(context, request)
        try:
            answer = self._runtime.execute(request.group_id, decision.result)
        except KafkaError as error:
            raise append_error_for_client(error) from error
        missing = list(decision.missing)
        uncreatable: list[str] = []
        if missing and self._authorizer is not None:
            uncreatable = self._authorizer.refused_creations(context, (topic.name for topic in missing))
        if uncreatable:
            add_missing(decision.result.response, f"; Unauthorized to CREATE on topics {', '.join(uncreatable)}.")
            return answer
        failed = self._create(context, request.group_id, missing)
        if failed:
            shown = ", ".join(failed[:SHOWN_ERRORS])
            more = f" and {len(failed) - SHOWN_ERRORS} more" if len(failed) > SHOWN_ERRORS else ""
            add_missing(decision.result.response, f"; Creation failed: {shown}{more}.")
        return answer

    def _create(self, context: RequestContext, group: str, topics: Iterable[InternalTopic]) -> list[str]:
        """Begin to create topics. Returns those that cannot be created, each with the reason."""
        failed = []
        for topic in topics:
            new = NewTopic(topic.name, topic.partitions, topic.replication_factor or USE_DEFAULT, dict(topic.configs))
            try:
                created = partial(note_change, "topic created", context, name=new.name, group=group)
                self._topics.create(new, created).done.on_done(partial(log_failure, new.name))
            except TopicAlreadyExistsError:
                continue  # another member's heartbeat has created it
            except KafkaError as error:
                failed.append(f"{topic.name} ({error.message})")
        return failed

    def describe(self, group_id: str, *, operations: bool) -> DescribedGroup:
        """Answer StreamsGroupDescribe v0 for one group."""
        try:
            if not group_id:
                raise InvalidGroupIdError
            group = self._runtime.shard_for(group_id).group(group_id)
            if not isinstance(group, StreamsGroup):
                raise GroupIdNotFoundError(f"Group {group_id} is not a streams group.")
            described = describe_streams_group(group)
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        described.authorized_operations = GROUP_OPERATIONS if operations else NOT_REQUESTED
        return described


def add_missing(response: StreamsGroupHeartbeatResponse, text: str) -> None:
    """Add a text to the status of missing internal topics."""
    for status in response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail += text


def log_failure(name: str, done: Deferred[TopicImage]) -> None:
    """Log a warning if a topic could not be created. The next heartbeat tries again."""
    try:
        done.result()
    except KafkaError as error:
        logger.warning("topic %s of a streams group cannot be created; the next heartbeat tries again: %s", name, error)
