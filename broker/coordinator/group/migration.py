"""Migration of non-empty groups between the classic and the consumer protocol (``group.consumer.migration.policy``).

    upgrade     a member with the consumer protocol joins a classic group of consumers: the group becomes a consumer
                group, in which the old members remain classic and keep their assignments; their waiting requests
                get REBALANCE_IN_PROGRESS, and ``classic.members`` answers their later requests
    downgrade   the last member of the consumer protocol leaves, and only classic ones are left: the group becomes a
                classic one with their target assignments, and rebalances. If a static classic member replaces the last
                consumer-protocol member, the group does not rebalance

One batch has the tombstones of the old kind of group and the records of the new kind: after a crash the group is
completely of one kind.

The clients' own format of subscriptions and assignments (ConsumerProtocol) is read and written here. Loop thread only.
Source: KIP-848.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from tidelog.broker.coordinator.group.classic.rebalance import ClassicRebalance, end_group
from tidelog.broker.coordinator.group.consumer.group import (
    ClassicSpec,
    ConsumerGroup,
    ConsumerMember,
    CurrentAssignment,
    Subscription,
)
from tidelog.broker.coordinator.group.consumer.records import (
    consumer_group_tombstones,
    current_record,
    epoch_record,
    member_record,
    replay_into,
    target_epoch_record,
    target_record,
)
from tidelog.broker.coordinator.group.records import group_metadata_record, group_tombstone
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.errors import GroupIdNotFoundError, InvalidRequestError, KafkaError, RebalanceInProgressError
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.broker.coordinator.config import GroupConfig
    from tidelog.broker.metadata.image import MetadataCache

logger = logging.getLogger(__name__)

UPGRADES = ("bidirectional", "upgrade")
DOWNGRADES = ("bidirectional", "downgrade")


class Migration:
    """Builds the records of migrations; ``finish_upgrade`` and the callback of ``downgrade`` complete them."""

    def __init__(
        self,
        groups: MutableMapping[str, Any],
        *,
        rebalance: ClassicRebalance,
        config: GroupConfig,
        metadata: MetadataCache,
    ) -> None:
        self._groups = groups
        self._rebalance = rebalance
        self._config = config
        self._metadata = metadata

    # -- classic to consumer ------------------------------------------------------------------------------------

    def upgrade(self, group: ClassicGroup, records: list[CoordinatorRecord]) -> ConsumerGroup:
        """Convert a classic group because a member of the consumer protocol joins, and add the records for that.

        Raises GroupIdNotFoundError if the policy forbids it, if the group is not of consumers or is too large, or if a
        member's subscription or assignment cannot be parsed.
        """
        policy = self._config.group_consumer_migration_policy
        if policy not in UPGRADES or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise GroupIdNotFoundError(f"Group {group.group_id} is not a consumer group.")
        if len(group.members) > self._config.group_consumer_max_size:
            raise GroupIdNotFoundError(f"Group {group.group_id} is too large for a consumer group.")
        try:
            converted = self._consumer_records(group)
        except InvalidRequestError as error:
            raise GroupIdNotFoundError(
                f"Cannot upgrade the classic group {group.group_id}: its consumers' protocol is malformed."
            ) from error
        upgraded = ConsumerGroup(group.group_id)
        upgraded.epoch = group.generation_id
        for record in converted[1:]:
            replay_into(upgraded, record.key, record.value)
        records.append(group_tombstone(group.group_id))
        records += converted
        return upgraded

    def _consumer_records(self, group: ClassicGroup) -> list[CoordinatorRecord]:
        """Build the records of a consumer group whose members have the assignments of the last generation. The first
        record is the group's epoch.
        """
        group_id, epoch = group.group_id, group.generation_id
        # Not that of the last generation: a member may have rejoined without it.
        protocol = group.select_protocol() if group.members else ""
        records = [epoch_record(group_id, epoch, 0), target_epoch_record(group_id, epoch, 0)]
        for member in group.members.values():
            spec = ClassicSpec(member.session_timeout_ms, tuple(member.protocols.items()))
            parsed = ConsumerProtocolSubscription.decode_prefixed_lenient(member.protocols[protocol])
            subscription = Subscription(
                instance_id=member.group_instance_id,
                rack_id=parsed.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                topic_names=tuple(sorted(set(parsed.topics))),
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                classic=spec,
            )
            assigned = self._read_assignment(member.assignment)
            epochs = {(topic_id, index): epoch for topic_id, indexes in assigned.items() for index in indexes}
            current = CurrentAssignment(epoch, epoch, assigned=assigned, epochs=epochs)
            records += [
                member_record(group_id, member.member_id, subscription),
                target_record(group_id, member.member_id, assigned),
                current_record(group_id, member.member_id, current),
            ]
        return records

    def _read_assignment(self, data: bytes) -> Assignment:
        if not data:
            return {}
        return self.group_by_topic_id(ConsumerProtocolAssignment.decode_prefixed_lenient(data).assigned_partitions)

    def group_by_topic_id(self, topics: list[TopicPartition]) -> dict[bytes, frozenset[int]]:
        """Group the partitions of existing topics by topic id."""
        found: dict[bytes, frozenset[int]] = {}
        for topic in topics:
            image = self._metadata.find(topic.topic)
            if image is not None and topic.partitions:
                found[image.topic_id] = found.get(image.topic_id, frozenset()) | frozenset(topic.partitions)
        return found

    def finish_upgrade(self, group: ClassicGroup) -> None:
        """End the classic group once the records are in the log: its waiting requests get REBALANCE_IN_PROGRESS, so
        that the members rejoin."""
        end_group(self._rebalance, group, RebalanceInProgressError.code)
        logger.info("group %s is a consumer group now, with %d classic members", group.group_id, len(group.members))

    # -- consumer to classic ------------------------------------------------------------------------------------

    def may_downgrade(self, group: ConsumerGroup, leaving_id: str, *, replaced: bool) -> bool:
        """Return whether the group may become classic when this member leaves or is replaced by a classic one.

        The member must be the last one of the consumer protocol, and classic members must be left. The policy and
        ``group.max.size`` must allow the change.
        """
        leaving = group.members[leaving_id]
        left = [member for member in group.members.values() if member is not leaving]
        if leaving.subscription.classic is not None or any(m.subscription.classic is None for m in left):
            return False
        size = len(left) + replaced
        allowed = self._config.group_consumer_migration_policy in DOWNGRADES
        return allowed and 0 < size <= self._config.group_max_size

    def downgrade(
        self, group: ConsumerGroup, leaving_id: str, joining: ConsumerMember | None
    ) -> tuple[list[CoordinatorRecord], Callable[[KafkaError | None], None]]:
        """Build the records of a downgrade, and the callback that replaces the group once they are in the log."""
        classic = self._classic_group(group, leaving_id, joining)
        records = [*consumer_group_tombstones(group), group_metadata_record(classic)]

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            self._groups[group.group_id] = classic
            for member in classic.members.values():
                self._rebalance.schedule_session(classic, member)
            logger.info("group %s is a classic group now, with %d members", group.group_id, len(classic.members))
            if joining is None:
                self._rebalance.prepare_rebalance(classic, "the last member of the consumer protocol left")

        return records, on_append

    def _classic_group(self, group: ConsumerGroup, leaving_id: str, joining: ConsumerMember | None) -> ClassicGroup:
        """Build a stable classic group, whose generation is the consumer group's epoch. A member ``joining`` gets the
        target of the leaving one."""
        classic = ClassicGroup(group.group_id, now_ms=self._rebalance.time.milliseconds(), state=STABLE)
        classic.generation_id = group.epoch
        classic.protocol_type = CONSUMER_PROTOCOL_TYPE
        members = [member for member in group.members.values() if member.member_id != leaving_id]
        for member in [*members, joining] if joining is not None else members:
            classic.add(_classic_member(member))
        classic.protocol_name = classic.select_protocol()
        classic.subscribed_topics = classic.compute_subscribed_topics()
        for member_id, converted in classic.members.items():
            is_joining = joining is not None and member_id == joining.member_id
            target = group.target_of(leaving_id if is_joining else member_id)
            converted.assignment = self.encode_assignment(target, converted.protocols[classic.protocol_name])
        return classic

    def encode_assignment(self, assigned: Assignment, subscription: bytes) -> bytes:
        """Encode a ConsumerProtocolAssignment in the version of the member's subscription."""
        names = self._metadata.topic_names
        topics = [
            TopicPartition(topic=names[topic_id], partitions=sorted(indexes))
            for topic_id, indexes in assigned.items()
            if topic_id in names
        ]
        version = int.from_bytes(subscription[:2], "big", signed=True)
        version = max(0, min(version, ConsumerProtocolAssignment.VERSIONS.highest))
        return ConsumerProtocolAssignment(assigned_partitions=topics).encode_prefixed(version)


def _classic_member(member: ConsumerMember) -> ClassicMember:
    subscription = member.subscription
    assert subscription.classic is not None
    return ClassicMember(
        member.member_id,
        group_instance_id=subscription.instance_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        session_timeout_ms=subscription.classic.session_timeout_ms,
        protocols=dict(subscription.classic.protocols),
    )
