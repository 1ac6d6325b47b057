"""The metadata quorum of a simulation: one active controller at a time, and the log that observers fetch.

Records are committed at once. Divergence and snapshots of a metadata log do not occur here: they are tested in
tests/unit/broker/cluster/observing/test_observer.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tests.simulation.clock import Clock
from tests.simulation.network import Reply
from tests.support.model_controller import ModelController
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.snapshot import build_metadata_batch
from tidelog.protocol.messages import fetch
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest
from tidelog.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from tidelog.protocol.messages.broker_registration import BrokerRegistrationRequest
from tidelog.protocol.metadata_records.control_records import BatchStart, LeaderChangeMessage, build_control_batch
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.types import METADATA_TOPIC_ID

CONTROLLER = 0
"""Id of the controllers' node in the network."""
ADDRESS = Address("controller", 9093)
EXPIRY_INTERVAL_MS = 50.0
FENCED_EPOCH, UNKNOWN_EPOCH = 74, 75
Question = (
    AlterPartitionRequest
    | AssignReplicasToDirsRequest
    | BrokerHeartbeatRequest
    | BrokerRegistrationRequest
    | fetch.FetchRequest
)


class Quorum:
    """The active controller, and the committed batches of the metadata log."""

    def __init__(self, clock: Clock, controller: ModelController, on_decision: Callable[[], None]) -> None:
        self.controller = controller
        self.epoch = 0
        self.is_active = True
        self._clock = clock
        self._on_decision = on_decision
        self._batches: list[bytes] = []
        self._ends: list[int] = []
        self._parked: list[tuple[fetch.FetchRequest, Reply]] = []
        self._begin_epoch()
        self._expire()

    # ---- controllers

    def fail_over(self, outage_ms: float) -> None:
        """Stop the active controller; after ``outage_ms`` the next one is active, and gives brokers new sessions."""
        if self.is_active:
            self.is_active = False
            self._parked.clear()
            self._clock.after(outage_ms, self._take_over)

    def _take_over(self) -> None:
        self.is_active = True
        self._begin_epoch()
        self.controller.renew_sessions(self._clock.now_ms)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        image = self.controller.image
        change = LeaderChangeMessage(version=1, leader_id=CONTROLLER)
        self._add(bytes(build_control_batch(change, BatchStart(image.offset + 1, self.epoch, 0))), image.offset + 2)
        self.controller.image = image._replace(offset=image.offset + 1, epoch=self.epoch)
        self._answer_parked()

    def _expire(self) -> None:
        if self.is_active:
            while self.decide(lambda: self.controller.expire_one(self._clock.now_ms)):
                pass
        self._clock.after(EXPIRY_INTERVAL_MS, self._expire)

    def decide(self, decision: Callable[[], object]) -> object:
        """Call a method of the controller, and append its records to the metadata log."""
        result = decision()
        commits, self.controller.commits = self.controller.commits, []
        for offset, records in commits:
            at = BatchStart(offset, self.epoch, 0)
            self._add(bytes(build_metadata_batch([versioned(one) for one in records], at)), offset + len(records))
        if commits:
            self._on_decision()
            self._answer_parked()
        return result

    def _add(self, batch: bytes, end: int) -> None:
        self._batches.append(batch)
        self._ends.append(end)

    # ---- requests

    def serve(self, request: Question, reply: Reply) -> None:
        """Answer a broker's request, unless no controller is active."""
        if not self.is_active:
            return
        now_ms = self._clock.now_ms
        if isinstance(request, fetch.FetchRequest):
            self._serve_fetch(request, reply)
        elif isinstance(request, BrokerRegistrationRequest):
            reply(self.decide(lambda: self.controller.register(request, now_ms)))
        elif isinstance(request, BrokerHeartbeatRequest):
            reply(self.decide(lambda: self.controller.beat(request, now_ms)))
        elif isinstance(request, AssignReplicasToDirsRequest):
            reply(self.decide(lambda: self.controller.assign_directories(request)))
        else:
            reply(self.decide(lambda: self.controller.alter_partition(request)))

    def _serve_fetch(self, request: fetch.FetchRequest, reply: Reply) -> None:
        asked = request.topics[0].partitions[0]
        if asked.current_leader_epoch == self.epoch and asked.fetch_offset >= self._ends[-1]:
            waiting = (request, reply)
            self._parked.append(waiting)
            self._clock.after(request.max_wait_ms, lambda: self._expire_fetch(waiting))
        else:
            reply(self._answer(asked))

    def _expire_fetch(self, waiting: tuple[fetch.FetchRequest, Reply]) -> None:
        if waiting in self._parked:
            self._parked.remove(waiting)
            waiting[1](self._answer(waiting[0].topics[0].partitions[0]))

    def _answer_parked(self) -> None:
        parked, self._parked = self._parked, []
        for request, reply in parked:
            reply(self._answer(request.topics[0].partitions[0]))

    def _answer(self, asked: fetch.FetchPartition) -> fetch.FetchResponse:
        leader = fetch.LeaderIdAndEpoch(leader_id=CONTROLLER, leader_epoch=self.epoch)
        answer = fetch.PartitionData(current_leader=leader, high_watermark=self._ends[-1], records=b"")
        if asked.current_leader_epoch != self.epoch:
            answer.error_code = FENCED_EPOCH if asked.current_leader_epoch < self.epoch else UNKNOWN_EPOCH
        else:
            first = bisect_left(self._ends, asked.fetch_offset + 1)
            answer.records = b"".join(self._batches[first:])
        topic = fetch.FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[answer])
        node = fetch.NodeEndpoint(node_id=CONTROLLER, host=ADDRESS.host, port=ADDRESS.port)
        return fetch.FetchResponse(responses=[topic], node_endpoints=[node])


def versioned(record: Message) -> VersionedRecord:
    """Return a record with its newest version."""
    return VersionedRecord(record, record.VERSIONS.highest)
