"""The coordinators of a broker, each built when it is first needed.

Handlers get the coordinators by ``coordinators_of``. ``start`` is called after the listeners are open, if an internal
topic exists. It builds the coordinators whose internal topics exist, and loads these in the background: their sessions
and transactions must time out even if no client sends a request. Loop thread only.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.config.broker_config import bounded_texts
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.coordinator.config import group_config, transaction_config
from tidelog.broker.coordinator.group.assignment_interval import assignment_interval_ms
from tidelog.broker.coordinator.group.coordinator import GroupCoordinator
from tidelog.broker.coordinator.group.records import GroupRecordSerde
from tidelog.broker.coordinator.group.shard import GroupShard
from tidelog.broker.coordinator.group.streams.config import streams_config
from tidelog.broker.coordinator.runtime.execution import ignore_execution
from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.broker.coordinator.transaction.markers import BrokerMarkerWriter
from tidelog.broker.coordinator.transaction.records import TransactionRecordSerde
from tidelog.broker.coordinator.transaction.shard import TransactionShard
from tidelog.broker.loop.deferred import Deferred, deferred_value, when_all
from tidelog.broker.loop.lazy import Lazy
from tidelog.broker.metadata.image import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from tidelog.broker.share.sessions import SessionKey
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordinator.group.shard import ListedState
    from tidelog.broker.coordinator.group.share.members import ShareMembers
    from tidelog.broker.coordinator.group.streams.members import StreamsMembers
    from tidelog.broker.coordinator.share_state.coordinator import ShareCoordinator
    from tidelog.broker.coordinator.share_state.states import ShareStates
    from tidelog.broker.loop.steps import Steps
    from tidelog.broker.share.share_groups import ShareGroups

logger = logging.getLogger(__name__)


class Coordinators:
    """Group, share and transaction coordinator of one broker, and the services for share and streams groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups = Lazy(self._build_groups)
        self._share = Lazy(self._build_share)
        self._share_members = Lazy(self._build_share_members)
        self._streams_members = Lazy(self._build_streams_members)
        self._share_groups = Lazy(self._build_share_groups)
        self._transactions = Lazy(self._build_transactions)

    @property
    def groups(self) -> GroupCoordinator:
        """The group coordinator, built when it is first needed."""
        return self._groups.get()

    @property
    def made_groups(self) -> GroupCoordinator | None:
        """The group coordinator, or None if nothing has needed it yet."""
        return self._groups.made

    @property
    def share(self) -> ShareCoordinator:
        """The share coordinator, which stores the states of share partitions; built when it is first needed."""
        return self._share.get()

    @property
    def share_states(self) -> ShareStates:
        """Store of the states of share partitions, whose coordinators may be other brokers."""
        peers = self._broker.peers
        return self.share if peers is None else peers.share_states

    @property
    def share_members(self) -> ShareMembers:
        """Service for the members and offsets of share groups, built with the first request for them."""
        return self._share_members.get()

    @property
    def streams_members(self) -> StreamsMembers:
        """Service for the members of streams groups, built with the first request for them."""
        return self._streams_members.get()

    @property
    def share_groups(self) -> ShareGroups:
        """Share partitions that this broker leads and serves. Built when they are first needed."""
        return self._share_groups.get()

    @property
    def transactions(self) -> TransactionCoordinator:
        """The transaction coordinator, built when it is first needed."""
        return self._transactions.get()

    @property
    def made_transactions(self) -> TransactionCoordinator | None:
        """The transaction coordinator, or None if nothing has needed it yet."""
        return self._transactions.made

    def append_end_transaction(self, partition: int, batch: bytearray, transaction_version: int) -> Deferred[None]:
        """Append a marker to a partition of ``__consumer_offsets``; settles when it is committed. Raises the
        KafkaErrors of the append, such as NotCoordinatorError if this broker has lost the leadership."""
        return self.groups.runtime.append_end_transaction(partition, batch, transaction_version)

    def _build_groups(self) -> GroupCoordinator:
        broker = self._broker
        config = group_config(broker.config.values)

        def own_texts(group_id: str) -> Mapping[str, str]:
            return bounded_texts(broker.configs.resource_texts(ResourceType.GROUP, group_id), broker.config.values)

        def new_shard(partition: int, timer: CoordinatorTimer) -> GroupShard:
            return GroupShard(
                timer,
                metadata=broker.metadata,
                time=broker.time,
                config=config,
                new_uuid=new_uuid,
                settings=own_texts,
                share_config=lambda group_id: self.share_groups.config(group_id),
                on_share_member_gone=lambda group_id, member_id: self._share_member_gone(group_id, member_id),
                on_states_unlisted=lambda states: self.groups.runtime.steps.run(self._delete_states(states)),
                streams_config=lambda group_id: streams_config(broker.config, own_texts(group_id)),
                interval_ms=lambda protocol, group_id: assignment_interval_ms(
                    broker.config, own_texts(group_id), protocol
                ),
                may_describe=None if broker.authorizer is None else broker.authorizer.may_describe,
            )

        runtime = CoordinatorRuntime(
            GROUP_METADATA_TOPIC,
            log=InternalTopicLog(broker, GROUP_METADATA_TOPIC, config.offsets_topic_num_partitions),
            serde=GroupRecordSerde(),
            new_shard=new_shard,
            close=GroupShard.close,
            time=broker.time,
            call_soon=broker.timers.turns.measure_callbacks("coordinator", broker.loop.call_soon),
            call_later=broker.timers.schedule,
        )
        return GroupCoordinator(runtime, lambda *group: self.share_members.delete_group(*group))

    def _build_share(self) -> ShareCoordinator:
        from tidelog.broker.coordinator.share_state.coordinator import ShareCoordinator, ShareStateLog
        from tidelog.broker.coordinator.share_state.records import ShareStateSerde
        from tidelog.broker.coordinator.share_state.state import ShareStateShard

        broker = self._broker
        log = ShareStateLog(
            broker, SHARE_GROUP_STATE_TOPIC, broker.config.get_int("share.coordinator.state.topic.num.partitions")
        )

        def new_shard(partition: int, timer: CoordinatorTimer) -> ShareStateShard:
            return ShareStateShard(
                timer,
                time=broker.time,
                updates_per_snapshot=broker.config.get_int("share.coordinator.snapshot.update.records.per.snapshot"),
                delete_before=lambda offset: log.delete_before(partition, offset),
            )

        runtime = CoordinatorRuntime(
            SHARE_GROUP_STATE_TOPIC,
            log=log,
            serde=ShareStateSerde(),
            new_shard=new_shard,
            time=broker.time,
            call_soon=broker.timers.turns.measure_callbacks("coordinator", broker.loop.call_soon),
            call_later=broker.timers.schedule,
        )
        return ShareCoordinator(runtime)

    def _build_share_members(self) -> ShareMembers:
        from tidelog.broker.coordinator.group.share.latest_offsets import LatestOffsets
        from tidelog.broker.coordinator.group.share.members import ShareMembers

        broker = self._broker
        latest_offsets = LatestOffsets(broker.replica_manager.partition, broker.peers)
        return ShareMembers(self.groups.runtime, self.share_states, broker.metadata, latest_offsets)

    def _build_streams_members(self) -> StreamsMembers:
        from tidelog.broker.coordinator.group.streams.members import StreamsMembers

        return StreamsMembers(self.groups.runtime, self._broker.topics.changes, self._broker.authorizer)

    def _build_share_groups(self) -> ShareGroups:
        from tidelog.broker.share.share_groups import ShareGroups

        return ShareGroups(self._broker, lambda: self.share_states, self.groups.runtime.steps)

    def _share_member_gone(self, group_id: str, member_id: str) -> None:
        """Release the records that a removed member had acquired. If its group is empty after that, drop the group's
        share partitions."""
        session_key = SessionKey(group_id, member_id)
        self.share_groups.release_session(session_key)
        release = self.share_groups.when_released(session_key) or deferred_value(None)
        release.on_done(lambda _: self._forget_empty_share_group(group_id))

    def _delete_states(self, states: list[ListedState]) -> Steps[None]:
        """Delete states that no share group lists. An error is only logged: no request can name such a state."""
        from tidelog.broker.coordinator.share_state.state import StateKey

        keys = [StateKey(*state) for state in states]
        try:
            if self._broker.peers is None:  # else the calls are repeated until their coordinators are loaded
                for key in keys:
                    yield self.share.when_open(key)
            yield from self.share_states.delete(keys)
        except KafkaError as error:
            logger.warning("%d states of a deleted topic's virtual topics remain: %s", len(keys), error)

    def _forget_empty_share_group(self, group_id: str) -> None:
        """Drop the share partitions of a group, unless it has members: one may have joined during a long release, and
        have acquired records. If the group is not loaded any more, its partitions are dropped, too."""
        with suppress(KafkaError):
            if not self.share_members.is_empty(group_id):
                return
        self.share_groups.forget_group(group_id)

    def _build_transactions(self) -> TransactionCoordinator:
        broker = self._broker
        config = transaction_config(broker.config.values)

        def new_shard(partition: int, timer: CoordinatorTimer) -> TransactionShard:
            return TransactionShard(
                timer,
                time=broker.time,
                config=config,
                next_producer_id=broker.producer_ids.take,
                finish=lambda transaction: self.transactions.finish(transaction),
            )

        runtime = CoordinatorRuntime(
            TRANSACTION_STATE_TOPIC,
            log=InternalTopicLog(broker, TRANSACTION_STATE_TOPIC, config.transaction_state_log_num_partitions),
            serde=TransactionRecordSerde(),
            new_shard=new_shard,
            time=broker.time,
            call_soon=broker.timers.turns.measure_callbacks("coordinator", broker.loop.call_soon),
            call_later=broker.timers.schedule,
        )
        markers = BrokerMarkerWriter(broker, self, broker.peers)
        return TransactionCoordinator(runtime, markers=markers, config=config)

    def start(self) -> None:
        """Load the internal topics, and remove the state of deleted topics whose deletion may be unfinished."""
        if TRANSACTION_STATE_TOPIC in self._broker.metadata.topics:
            self.transactions.runtime.load_all()
        if GROUP_METADATA_TOPIC in self._broker.metadata.topics:
            self.groups.runtime.load_all()
        if SHARE_GROUP_STATE_TOPIC in self._broker.metadata.topics:
            self.share.runtime.load_all()

        for topic_id, name in list(self._broker.controller.deletions.items()):
            on_removed = partial(self._broker.topics.state_removed, topic_id)
            if name in self._broker.metadata.topics or name in INTERNAL_TOPICS:
                on_removed()
            else:
                self.forget_topic(name, topic_id, on_removed)

    def take_roles(self, topic: str) -> None:
        """Load the partitions of an internal topic that this broker leads now, and unload those that it lost. Called
        when the topic is new or has changed.
        """
        if topic == GROUP_METADATA_TOPIC:
            for shard in self.groups.runtime.resign_lost():
                shard.close()
            self.groups.runtime.load_all()
        elif topic == TRANSACTION_STATE_TOPIC:
            self.transactions.runtime.resign_lost()
            self.transactions.runtime.load_all()
        elif topic == SHARE_GROUP_STATE_TOPIC:
            self.share.runtime.resign_lost()
            self.share.runtime.load_all()

    def forget_topic(
        self, topic: str, topic_id: bytes, on_removed: Callable[[], None] = ignore_execution
    ) -> Deferred[None]:
        """Remove the state of a deleted topic as ``topic_deleted`` does. An error is only logged, because removal is
        tried again.
        """

        def log_error(error: KafkaError) -> None:
            logger.warning("committed offsets of the deleted topic %s are removed later: %s", topic, error)

        return self.topic_deleted(topic, topic_id, on_removed).recover(log_error)

    def topic_deleted(
        self, topic: str, topic_id: bytes, on_removed: Callable[[], None] = ignore_execution
    ) -> Deferred[None]:
        """Remove the committed offsets of a deleted topic and of its virtual topics, and the states of its share
        partitions. If the topic is internal, unload its coordinator.

        The Deferred completes when all are removed: with a million groups that takes seconds, while other requests are
        served. The Deferred fails with the KafkaError of a failed append, which is tried again.

        ``on_removed`` is called when nothing is left, also in partitions that are loaded or written later. It is not
        called if another broker leads a partition of the internal topics.
        """
        topics = self._broker.metadata.topics
        if topic == GROUP_METADATA_TOPIC:
            self.groups.runtime.unload()
        elif topic == TRANSACTION_STATE_TOPIC:
            self.transactions.runtime.unload()
        elif topic == SHARE_GROUP_STATE_TOPIC:
            self.share.runtime.unload()
        elif GROUP_METADATA_TOPIC in topics:
            removals: list[Deferred[None]] = [Deferred()]
            waits = [self.groups.topic_deleted(topic, topic_id, partial(removals[0].complete, None))]
            if SHARE_GROUP_STATE_TOPIC in topics:
                removals.append(Deferred())
                waits.append(self.share.topic_deleted(topic_id, partial(removals[1].complete, None)))
                forgetting = self.share.runtime.steps.run(self.share_groups.forget_topic(topic_id))
                waits.append(deferred_value(None) if forgetting is None else forgetting.done)
            when_all(removals, None).on_done(lambda _: on_removed())
            return when_all(waits, None)
        on_removed()
        return deferred_value(None)

    def close(self) -> None:
        """Stop all coordinators. Members that wait for a rebalance get NOT_COORDINATOR, which clients retry."""
        groups, transactions, share = self._groups.made, self._transactions.made, self._share.made
        if groups is not None:
            groups.runtime.unload()
        if transactions is not None:
            transactions.runtime.unload()
        if share is not None:
            share.runtime.unload()


def new_uuid() -> str:
    """Return the unique part of a member id."""
    return str(uuid.uuid4())


def coordinators_of(broker: Broker) -> Coordinators:
    """Return the broker's coordinators, which are built at the first call."""
    return broker.services.coordinators.get()
