"""Connections of a member to other brokers: transaction markers, verification of producers, share states, offsets
and records.

Markers and verifications share one connection for each broker, with one request at a time; the others have connections
of their own. Markers that wait for one broker are sent together. Each is sent again until the partition's leader has
written it, or it is not needed any more: a transaction whose marker is lost never ends. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

from tidelog.broker.broker import Broker
from tidelog.broker.cluster.txn_markers import Marker, find_finished, request_of
from tidelog.broker.cluster.txn_verification import Guard, GuardKey, Verifications
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.runtime.key_hash import java_string_hash
from tidelog.broker.coordinator.transaction.markers import BrokerMarkerWriter
from tidelog.broker.loop.deferred import Deferred, NotReadyError, deferred_error, error_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.connections.latest_offsets import PeerOffsets
from tidelog.broker.member.connections.leaders import Leaders
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.connections.share_states import MemberShareStates
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.nodes import peer_address
from tidelog.broker.metadata.image import TRANSACTION_STATE_TOPIC
from tidelog.broker.peers import LeaderRequest
from tidelog.protocol.errors import (
    NONE,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    KafkaError,
    NotLeaderOrFollowerError,
    TransactionCoordinatorFencedError,
    error_for_code,
)
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersResponse
from tidelog.protocol.schema.fields import Message

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
MARKER_RETRY_S = 0.1
MAX_MARKERS = 1_000
"""Largest number of markers in one request. While a broker is down, more may collect."""
CONCURRENT_RETRIES = 10
CONCURRENT_RETRY_S = 0.02
"""Pause in s before a coordinator is asked again that was still ending the producer's last transaction. After
CONCURRENT_RETRIES attempts the client has to retry.
"""
Response = TypeVar("Response", bound=Message)
Start = Callable[[Coroutine[Any, Any, None]], None]


class _Peer:
    """The connection to one broker, and the markers that wait for it."""

    def __init__(self, security: PeerSecurity) -> None:
        self.channel = Channel(REQUEST_TIMEOUT_S, security)
        self.lock = asyncio.Lock()
        self.markers: dict[Marker, Deferred[None]] = {}


class MemberPeers:
    """Other brokers, by their ids in the newest image. ``start`` runs a task until this broker stops."""

    def __init__(
        self, broker: Callable[[], Broker], controller: RemoteController, security: PeerSecurity, start: Start
    ) -> None:
        self._broker = broker
        self._controller = controller
        self._security = security
        self._start = start
        self._peers: dict[int, _Peer] = {}
        self._verifications = Verifications()
        self.share_states = MemberShareStates(broker, controller, security, start)
        """States of share partitions, at their coordinators on this broker and on others."""
        self._offsets = PeerOffsets(controller, security, start)
        self._leaders = Leaders(controller, security, start)

    # ---- offsets of partitions that other brokers lead

    def latest_offsets(self, asked: Iterable[tuple[str, int]]) -> Steps[dict[tuple[str, int], int | KafkaError]]:
        """Return the high watermarks of partitions that other brokers lead, or the errors because of which they are
        not known.
        """
        return self._offsets.find(asked)

    def ask_leader(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Deferred[Response]:
        """Ask another broker as a consumer does, in a version up to ``highest``. Fails with LeaderNotAvailableError."""
        return self._leaders.ask(node_id, request, response_type, highest)

    # ---- verification of transactional producers

    def check_batch(self, partition: tuple[str, int], producer: tuple[int, int]) -> None:
        """Raise the coordinator's KafkaError unless a producer may write into a partition. Raise
        CoordinatorLoadInProgressError while there is no answer, NotLeaderOrFollowerError if another broker leads the
        partition.
        """
        key = self._key_of(partition, producer[0])
        if key is None:
            raise NotLeaderOrFollowerError
        self._verifications.check(key, producer[1])

    def ask_coordinator(
        self, transactional_id: str, partition: tuple[str, int], producer: tuple[int, int], *, is_adding: bool
    ) -> Deferred[None] | None:
        """Ask the coordinator about a producer's batch, unless it was asked before. The Deferred completes when the
        coordinator has answered; ``check_batch`` raises the answer if it is an error. None if there is nothing to wait
        for.

        A coordinator on this broker is asked only to add the partition. The addition has to be committed before
        records are appended: else, after a failover, the new coordinator would not end the transaction in this
        partition.
        """
        key = self._key_of(partition, producer[0])
        if key is None or not self._verifications.is_wanted(key, producer[1]):
            return None
        coordinator = self._coordinator(transactional_id)
        is_here = coordinator == self._controller.node_id
        if coordinator is None or (is_here and not is_adding):
            return None
        guard = self._verifications.ask(key, producer[1])
        done: Deferred[None] = Deferred()
        if is_here:
            self._add_here(transactional_id, key, guard, done)
            return None if done.done else done
        self._start(self._verify(transactional_id, key, guard, is_adding, done))
        return done

    def _key_of(self, partition: tuple[str, int], producer_id: int) -> GuardKey | None:
        """Return the key of a producer in a partition, None if this broker does not lead the partition."""
        try:
            found = self._broker().replica_manager.partition(*partition)
        except KafkaError:
            return None
        return GuardKey(*partition, producer_id, found.leader_epoch) if found.is_leader else None

    def _add_here(
        self, transactional_id: str, key: GuardKey, guard: Guard, done: Deferred[None], *, is_again: bool = False
    ) -> None:
        """Add a partition to a transaction of this broker's own coordinator. ``check_batch`` raises the coordinator's
        error before the append; the next request asks again.
        """
        transactions = coordinators_of(self._broker()).transactions
        producer = key.producer_id, guard.epoch

        def settle(added: Deferred[None]) -> None:
            self._verifications.settle(guard, error_of(added))
            done.complete(None)

        try:
            transactions.add_partitions(transactional_id, producer, ((key.topic, key.partition),), 2).on_done(settle)
        except NotReadyError as error:
            if is_again:
                settle(deferred_error(error))
                return
            error.ready.on_done(lambda _: self._add_here(transactional_id, key, guard, done, is_again=True))
        except KafkaError as error:
            settle(deferred_error(error))

    def _coordinator(self, transactional_id: str) -> int | None:
        topic = self._controller.image.topic_by_name(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return None
        return topic.partitions[java_string_hash(transactional_id) % len(topic.partitions)].leader

    async def _verify(
        self, transactional_id: str, key: GuardKey, guard: Guard, is_adding: bool, done: Deferred[None]
    ) -> None:
        """Ask the coordinator on another broker about a producer, again while it is still ending the producer's last
        transaction."""
        error: KafkaError | None = None
        for _ in range(CONCURRENT_RETRIES):
            error = await self._verify_once(transactional_id, key, guard.epoch, is_adding)
            if not isinstance(error, ConcurrentTransactionsError):
                break
            await asyncio.sleep(CONCURRENT_RETRY_S)
        self._verifications.settle(guard, error)
        if not done.abandoned:
            done.complete(None)

    async def _verify_once(
        self, transactional_id: str, key: GuardKey, epoch: int, is_adding: bool
    ) -> KafkaError | None:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=key.producer_id,
            producer_epoch=epoch,
            verify_only=not is_adding,
            topics=[AddPartitionsToTxnTopic(name=key.topic, partitions=[key.partition])],
        )
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        try:
            answer = await self._ask(self._coordinator(transactional_id), request, AddPartitionsToTxnResponse)
        except ChannelError as error:
            return CoordinatorNotAvailableError(str(error))
        codes = [answer.error_code] + [
            one.partition_error_code
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for one in topic.results_by_partition
        ]
        failures = [code for code in codes if code != NONE]
        return error_for_code(failures[0])() if failures else None

    # ---- markers

    def note_marker(self, partition: tuple[str, int], producer_id: int) -> None:
        """Note that a marker was written here, so that the producer's next transaction is verified again."""
        key = self._key_of(partition, producer_id)
        if key is not None:
            self._verifications.note_marker(key)

    def write_marker(self, marker: Marker) -> Deferred[None]:
        """Send a marker to a partition's leader; settles when it is written, or not needed any more."""
        done: Deferred[None] = Deferred()
        self._deliver(marker, done)
        return done

    def _deliver(self, marker: Marker, done: Deferred[None]) -> None:
        """Send a marker to the leader of its partition in the newest image."""
        topic = self._controller.image.topic_by_name(marker.topic)
        if topic is None or marker.partition >= len(topic.partitions):
            done.complete(None)  # the topic was deleted
            return
        leader = topic.partitions[marker.partition].leader
        if leader == self._controller.node_id:
            self._write_here(marker, done)
            return
        peer = self._peer(leader)
        under_way = peer.markers.get(marker)
        if under_way is not None:
            under_way.pass_to(done)
            return
        peer.markers[marker] = done
        if len(peer.markers) == 1:
            self._start(self._send_markers(leader, peer))

    def _write_here(self, marker: Marker, done: Deferred[None]) -> None:
        """Write a marker into a partition that this broker leads; after an error try again later."""
        broker = self._broker()
        try:
            local = BrokerMarkerWriter(broker, coordinators_of(broker)).write(
                (marker.topic, marker.partition),
                (marker.producer_id, marker.producer_epoch),
                commit=marker.is_commit,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        except (InvalidProducerEpochError, TransactionCoordinatorFencedError):
            done.complete(None)  # the epoch of the producer or its coordinator is old: the marker is not needed
        except KafkaError:
            self._start(self._deliver_later({marker: done}))
        else:
            local.pass_to(done)

    async def _send_markers(self, node_id: int, peer: _Peer) -> None:
        """Send all markers that wait for one broker."""
        await asyncio.sleep(0)  # markers of the same turn go together
        while peer.markers:
            sent = dict(islice(peer.markers.items(), MAX_MARKERS))
            try:
                answer = await self._ask(node_id, request_of(sent), WriteTxnMarkersResponse)
                taken = find_finished(sent, answer)
            except ChannelError as error:
                logger.info("cannot send transaction markers to broker %d, trying again: %s", node_id, error)
                taken = set()
            peer.markers = {marker: done for marker, done in peer.markers.items() if marker not in sent}
            for marker in taken:
                sent.pop(marker).complete(None)
            if sent:
                self._start(self._deliver_later(sent))

    async def _deliver_later(self, markers: dict[Marker, Deferred[None]]) -> None:
        await asyncio.sleep(MARKER_RETRY_S)
        for marker, done in markers.items():
            self._deliver(marker, done)

    # ---- connections

    async def _ask(self, node_id: int | None, request: Message, response_type: type[Response]) -> Response:
        """Ask a broker. Raises ChannelError."""
        number = -1 if node_id is None else node_id
        address = peer_address(self._controller.image, number, self._security.listener_name)
        peer = self._peer(number)
        async with peer.lock:
            return await peer.channel.ask(address, request, response_type)

    def _peer(self, node_id: int) -> _Peer:
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = _Peer(self._security)
        return peer
