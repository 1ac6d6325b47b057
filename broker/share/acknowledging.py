"""Acknowledgements in a ShareFetch or ShareAcknowledge request, which are checked and applied for each partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred, deferred_error, deferred_value
from tidelog.broker.loop.steps import Steps
from tidelog.broker.share.sessions import PartitionKey
from tidelog.broker.share.share_partition import REJECT, RENEW, AcknowledgementBatch
from tidelog.protocol.errors import InvalidRequestError, KafkaError, UnknownTopicIdError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.share_acknowledge import AcknowledgeTopic
from tidelog.protocol.messages.share_fetch import FetchTopic

if TYPE_CHECKING:
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.share.share_groups import ShareGroups

_FIRST_VERSION_WITH_RENEWAL = 2
MAX_MEMBER_ID_LENGTH = 36
"""Length of a UUID as text: members choose one as their id."""

Outcomes = dict[PartitionKey, Deferred[None]]
"""Partition -> Deferred that completes when the partition's acknowledgements are committed, and fails if they are
refused or cannot be stored."""


class Acknowledger(NamedTuple):
    """The member that acknowledges, its request's version, and whether the request may renew locks."""

    group_id: str
    member_id: str
    version: int
    is_renewal: bool


def acknowledge_all(
    groups: ShareGroups, metadata: MetadataCache, who: Acknowledger, topics: Iterable[FetchTopic | AcknowledgeTopic]
) -> Steps[Outcomes]:
    """Apply the acknowledgements of a request's partitions, one partition in a step. A partition without
    acknowledgements succeeds if it exists."""
    outcomes: Outcomes = {}
    for topic in topics:
        topic_id = bytes(topic.topic_id)
        for asked in topic.partitions:
            index, image = asked.partition_index, metadata.topic_by_id(topic_id)
            batches = [
                AcknowledgementBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in asked.acknowledgement_batches
            ]
            try:
                if image is None:
                    raise UnknownTopicIdError
                check_batches(batches, who)
                if not 0 <= index < image.partition_count:
                    raise UnknownTopicOrPartitionError
                outcome = deferred_value(None)
                if batches:
                    outcome = groups.acknowledge(StateKey(who.group_id, topic_id, index), who.member_id, batches)
                outcomes[topic_id, index] = outcome
            except KafkaError as error:
                outcomes[topic_id, index] = deferred_error(error)
            yield None
    return outcomes


def check_batches(batches: Iterable[AcknowledgementBatch], who: Acknowledger) -> None:
    """Raise InvalidRequestError for batches out of order, and for acknowledge types that are unknown or not allowed in
    the request. A batch must have one type, or one for each offset."""
    last_type = RENEW if who.version >= _FIRST_VERSION_WITH_RENEWAL else REJECT
    previous_last = -1
    for batch in batches:
        types = batch.types
        if batch.first > batch.last or batch.first < previous_last or not types:
            raise InvalidRequestError
        if len(types) > 1 and batch.last - batch.first + 1 != len(types):
            raise InvalidRequestError
        if any(not 0 <= kind <= last_type or (kind == RENEW and not who.is_renewal) for kind in types):
            raise InvalidRequestError
        previous_last = batch.last


def check_member(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Return the group id and the member id of a request.

    Raises InvalidRequestError if the group id is null, or the member id is null, empty or longer than
    MAX_MEMBER_ID_LENGTH characters.
    """
    if group_id is None:
        raise InvalidRequestError("Invalid group id in the request.")
    if not member_id or len(member_id) > MAX_MEMBER_ID_LENGTH:
        raise InvalidRequestError("Invalid member id in the request.")
    return group_id, member_id
