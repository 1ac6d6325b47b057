"""States of share partitions as a member reads and writes them: at their coordinators, on this broker or on others.

Each broker gets one request at a time, over a connection that nothing else uses: a coordinator that loads its log
delays nothing else. ``ShareStatePersister`` decides which requests wait and which are sent again. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.runtime.key_hash import java_string_hash
from tidelog.broker.coordinator.share_state.calls import CALLS, build_write_data, results_of
from tidelog.broker.coordinator.share_state.coordinator import coordinator_key
from tidelog.broker.coordinator.share_state.persister import CallBatch, ShareStatePersister
from tidelog.broker.coordinator.share_state.state import NO_EPOCH, ShareState, StateKey, StateUpdate
from tidelog.broker.loop.deferred import Deferred, begin_after, deferred_error, error_of, when_all_done
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps, wait_for_all
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.nodes import peer_address
from tidelog.broker.metadata.image import SHARE_GROUP_STATE_TOPIC
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    KafkaError,
    NotLeaderOrFollowerError,
)
from tidelog.protocol.messages.delete_share_group_state import PartitionData as DeletePartition
from tidelog.protocol.messages.initialize_share_group_state import PartitionData as InitializePartition
from tidelog.protocol.messages.read_share_group_state import PartitionData as ReadPartition
from tidelog.protocol.messages.read_share_group_state_summary import PartitionData as SummaryPartition
from tidelog.protocol.schema.fields import Struct

REQUEST_TIMEOUT_S = 10.0
MAX_READ = 10_000
"""Largest number of states that were read and not used by a fetch yet. A fetch whose state was dropped fails with
NotLeaderOrFollowerError; the next fetch reads the state again.
"""


class MemberShareStates:
    """Access to the share coordinators of the cluster. ``start`` runs a task until this broker stops."""

    def __init__(
        self,
        broker: Callable[[], Broker],
        controller: RemoteController,
        security: PeerSecurity,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._broker = broker
        self._controller = controller
        self._security = security
        self._start = start
        self._persister = ShareStatePersister(self._coordinator)
        self._channels: dict[int, Channel] = {}
        self._read: dict[StateKey, tuple[int, ShareState | KafkaError]] = {}
        """States, or errors, that were read and not used yet, with the leader epoch of the request."""
        self._is_sending_soon = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- for leaders of partitions

    def when_open(self, key: StateKey, leader_epoch: int) -> Deferred[None]:
        """Begin to read a state; settles when ``read`` can return it."""
        self._read.pop(key, None)

        def keep(found: ShareState | KafkaError) -> None:
            if len(self._read) >= MAX_READ:
                del self._read[next(iter(self._read))]
            self._read[key] = (leader_epoch, found)

        asked = ReadPartition(partition=key.partition, leader_epoch=leader_epoch)
        return self._ask(ApiKey.READ_SHARE_GROUP_STATE, key, asked).map(keep).recover(keep)

    def read(self, key: StateKey, leader_epoch: int) -> ShareState:
        """Return the state that ``when_open`` has read, and forget it. Raises KafkaError."""
        epoch, found = self._read.pop(key, (NO_EPOCH, CoordinatorLoadInProgressError()))
        if epoch != leader_epoch:
            raise NotLeaderOrFollowerError
        if isinstance(found, KafkaError):
            raise found
        return found

    def write(self, key: StateKey, written: StateUpdate) -> Deferred[None]:
        """Write a change; settles when it is committed."""

        def forget_read(_: Deferred[None]) -> None:
            self._read.pop(key, None)  # read for a fetch that did not need it: the share partition was served by then

        answer = self._ask(ApiKey.WRITE_SHARE_GROUP_STATE, key, build_write_data(key, written))
        answer.on_done(forget_read)
        return answer

    # ---- for coordinators of groups

    def initialize(self, key: StateKey, start_offset: int, state_epoch: int) -> Deferred[None]:
        """Create a state that starts at ``start_offset``; settles when it is committed."""
        asked = InitializePartition(partition=key.partition, start_offset=start_offset, state_epoch=state_epoch)
        return self._ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, key, asked)

    def delete(self, keys: Iterable[StateKey]) -> Steps[None]:
        """Delete states; ends when that is committed. Raises KafkaError."""
        api = ApiKey.DELETE_SHARE_GROUP_STATE
        yield from self._ask_all(api, ((key, DeletePartition(partition=key.partition)) for key in keys))

    def summaries(self, keys: Sequence[StateKey]) -> Steps[dict[StateKey, ShareState | None]]:
        """Return states without their batches; all of them are committed. Raises KafkaError."""
        asked = ((key, SummaryPartition(partition=key.partition, leader_epoch=NO_EPOCH)) for key in keys)
        found = yield from self._ask_all(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, asked)
        return dict(zip(keys, found, strict=True))

    def _ask_all(self, api: ApiKey, asked: Iterable[tuple[StateKey, Struct]]) -> Steps[list[Any]]:
        waits = []
        for number, (key, partition) in enumerate(asked):
            waits.append(self._ask(api, key, partition))
            if not number % ITEMS_PER_STEP:
                yield None
        return (yield from wait_for_all(waits))

    # ---- calls

    def _ask(self, api: ApiKey, key: StateKey, asked: Struct) -> Deferred[Any]:
        answer = self._persister.ask(api, key, asked, self._now_ms())
        self._send_soon()
        return answer

    def _send_soon(self) -> None:
        """Send in the next turn of the loop, so that all calls of this turn are sent together."""
        if not self._is_sending_soon:
            self._is_sending_soon = True
            asyncio.get_running_loop().call_soon(self._send_what_waits)

    def _send_what_waits(self) -> None:
        self._is_sending_soon = False
        now_ms = self._now_ms()
        while (batch := self._persister.next_batch(now_ms)) is not None:
            if batch.node_id == self._controller.node_id:
                self._apply(batch)
            else:
                self._start(self._send(batch))
        wake_ms = self._persister.wake_ms(now_ms)
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if wake_ms is None else loop.call_at(wake_ms / 1000, self._send_what_waits)

    def _apply(self, batch: CallBatch) -> None:
        """Make a batch's calls at this broker's own coordinator."""
        outcomes = {key: self._apply_one(batch.api, key, call.asked) for key, call in batch.calls.items()}

        def take() -> None:
            results = {key: error_of(outcome) or outcome.result() for key, outcome in outcomes.items()}
            self._persister.take_results(batch, results, self._now_ms())

        if isinstance(taken := when_all_done(outcomes.values(), take), Deferred):
            taken.on_done(lambda _: self._send_soon())

    def _apply_one(self, api: ApiKey, key: StateKey, asked: Struct) -> Deferred[Any]:
        try:
            share = coordinators_of(self._broker()).share
            opening = share.when_open(key)
            if opening is not None:
                return begin_after(opening, lambda: CALLS[api].apply(share, key, asked))
            return CALLS[api].apply(share, key, asked)
        except KafkaError as error:
            return deferred_error(error)

    async def _send(self, batch: CallBatch) -> None:
        """Make a batch's calls at another broker's coordinator."""
        channel = self._channels.setdefault(batch.node_id, Channel(REQUEST_TIMEOUT_S, self._security))
        try:
            address = peer_address(self._controller.image, batch.node_id, self._security.listener_name)
            answer = await channel.ask(address, batch.request, batch.response_type)
        except ChannelError as error:
            self._persister.take_failure(batch, str(error), self._now_ms())
        else:
            results = results_of(batch.api, batch.group_id, answer)
            self._persister.take_results(batch, results, self._now_ms())
        self._send_soon()

    def _coordinator(self, key: StateKey) -> int | None:
        """Return the leader of a state's partition in the newest image, or None. If the topic does not exist, it is
        created.
        """
        topic = self._controller.image.topic_by_name(SHARE_GROUP_STATE_TOPIC)
        if topic is None:
            with suppress(KafkaError):
                self._broker().topics.ensure_internal_topic(SHARE_GROUP_STATE_TOPIC)
            return None
        leader = topic.partitions[java_string_hash(coordinator_key(key)) % len(topic.partitions)].leader
        return None if leader < 0 else leader

    @staticmethod
    def _now_ms() -> float:
        return 1000 * asyncio.get_running_loop().time()
