"""A model of the active controller: registrations, sessions, fencing, topics, elections, AlterPartition.

Times are passed in. Each decision is a list of records, which are kept in ``commits`` and replayed onto ``image``, the
metadata image of a broker that has replayed all records. tests/simulation/test_model_controller.py compares responses
and records with those of a real controller. Source: ClusterControlManager, BrokerHeartbeatManager,
ReplicationControlManager of Kafka 4.3; KIP-631, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.support.partition_change import RECOVERING, Election, PartitionChange, Rules
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import UNASSIGNED_DIRECTORY
from tidelog.broker.metadata.metadata_image import (
    NO_LEADER,
    TOPIC_RESOURCE,
    BrokerRegistration,
    MetadataImage,
    PartitionState,
)
from tidelog.protocol import errors
from tidelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicDataResponse,
)
from tidelog.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from tidelog.protocol.metadata_records import records
from tidelog.protocol.schema.fields import Message

SESSION_MS = 9000.0
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
MIN_ISR, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
ANY_EPOCH = -1
FENCE, UNFENCE, IN_SHUTDOWN = 1, -1, 1


class Session(NamedTuple):
    """The controller's state of a broker: time of the last heartbeat, offset of its image, offset of its shutdown."""

    heard_ms: float
    is_heard: bool = False
    """Whether the broker has sent a heartbeat since its registration: before, another process may register the id."""
    position: int = -1
    shutdown_offset: int = -1


class Saved(NamedTuple):
    """A model's state at one moment."""

    image: MetadataImage
    sessions: dict[int, Session]
    register_offsets: dict[int, int]


class Place(NamedTuple):
    """One partition of the cluster and its current state."""

    topic_id: bytes
    number: int
    state: PartitionState


class ModelController:
    """Registered brokers with their sessions, topics, and the records of all decisions."""

    def __init__(self, *, session_ms: float = SESSION_MS, has_elr: bool = True, offset: int = 100) -> None:
        self.image = MetadataImage(offset=offset, epoch=1)
        self.commits: list[tuple[int, Sequence[Message]]] = []
        """The decisions: offset of the first record, and the records."""
        self.register_offsets: dict[int, int] = {}
        self._session_ms = session_ms
        self._has_elr = has_elr
        self._sessions: dict[int, Session] = {}

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registered brokers."""
        return self.image.brokers

    @property
    def offset(self) -> int:
        """Offset of the last record."""
        return self.image.offset

    def commit(self, *decided: Message) -> None:
        """Append records, as one decision."""
        if not decided:
            return
        self.commits.append((self.offset + 1, decided))
        delta = MetadataDelta(self.image)
        for record in decided:
            delta.replay(record)
        self.image = delta.build(self.offset + len(decided), self.image.epoch, 0)

    def save(self) -> Saved:
        """Return the state, for ``restore``."""
        return Saved(self.image, dict(self._sessions), dict(self.register_offsets))

    def restore(self, saved: Saved) -> None:
        """Return to a saved state, and forget the decisions since."""
        self.image, self.commits = saved.image, []
        self._sessions, self.register_offsets = dict(saved.sessions), dict(saved.register_offsets)

    # ---- topics

    def create_topic(
        self, name: str, topic_id: bytes, replicas: Sequence[Sequence[int]], configs: Mapping[str, str]
    ) -> None:
        """Create a topic; the first live replica of each partition leads."""
        made: list[Message] = [records.TopicRecord(name=name, topic_id=topic_id)]
        for number, assigned in enumerate(replicas):
            isr = [one for one in assigned if self.is_active(one)]
            made.append(
                records.PartitionRecord(
                    partition_id=number, topic_id=topic_id, replicas=list(assigned), isr=isr, leader=isr[0],
                    leader_recovery_state=0, leader_epoch=0, partition_epoch=0,
                    directories=[self.brokers[one].directories[0] for one in assigned],
                )
            )  # fmt: skip
        for key, value in configs.items():
            made.append(records.ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=name, name=key, value=value))
        self.commit(*made)

    def places(self) -> Iterator[Place]:
        """Yield all partitions."""
        for topic in self.image.topics.values():
            for number, state in enumerate(topic.partitions):
                yield Place(topic.topic_id, number, state)

    def config(self, topic_id: bytes, key: str, default: str) -> str:
        """Return a topic's config."""
        name = self.image.topics[topic_id].name
        return self.image.configs.get((TOPIC_RESOURCE, name), {}).get(key, default)

    def min_isr(self, topic_id: bytes, state: PartitionState) -> int:
        """Return the effective min ISR, which is at most the number of replicas."""
        return min(int(self.config(topic_id, MIN_ISR, "1")), len(state.replicas))

    def is_active(self, broker_id: int) -> bool:
        """Return whether a broker may lead."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced and not broker.in_controlled_shutdown

    # ---- registrations

    def register(self, request: BrokerRegistrationRequest, now_ms: float) -> BrokerRegistrationResponse:
        """Register a broker, unless another process has a session with its id."""
        if request.cluster_id != CLUSTER_ID:
            return BrokerRegistrationResponse(error_code=errors.InconsistentClusterIdError.code)
        before = self.brokers.get(request.broker_id)
        is_same = before is not None and before.incarnation_id == request.incarnation_id
        if before is not None and not is_same and self._has_session(request.broker_id, now_ms):
            return BrokerRegistrationResponse(error_code=errors.DuplicateBrokerRegistrationError.code)
        epoch = before.broker_epoch if before is not None and is_same else self.offset + 1
        changes = [] if is_same else self._changes_of_shutdown(request, before)
        self.commit(*changes, _registration(request, epoch, before if is_same else None))
        self.register_offsets[request.broker_id] = self.offset
        kept = self._sessions.get(request.broker_id, Session(now_ms)) if is_same else Session(now_ms)
        self._sessions[request.broker_id] = kept._replace(heard_ms=now_ms, position=-1, shutdown_offset=-1)
        return BrokerRegistrationResponse(broker_epoch=epoch)

    def _changes_of_shutdown(
        self, request: BrokerRegistrationRequest, before: BrokerRegistration | None
    ) -> list[Message]:
        """Return the records that remove the broker from every ISR, and after an unclean stop from every ELR."""
        broker_id = request.broker_id
        if before is None:
            return self._changes(self._in_isr(broker_id), unclean=broker_id) if self._has_elr else []
        if not self._has_elr or request.previous_broker_epoch == before.broker_epoch:
            return self._changes(self._in_isr(broker_id), removed=broker_id)
        in_elr = [place for place in self.places() if broker_id in place.state.elr]
        return self._changes([*self._in_isr(broker_id), *in_elr], unclean=broker_id)

    def renew_sessions(self, now_ms: float) -> None:
        """Renew all sessions, as a controller that becomes active does."""
        self._sessions = {broker_id: Session(now_ms, is_heard=True) for broker_id in self.brokers}

    def forget(self, broker_id: int) -> None:
        """End a broker's session, as its unregistration does: another process may register the id."""
        self._sessions.pop(broker_id, None)

    def _has_session(self, broker_id: int, now_ms: float) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and session.is_heard and now_ms - session.heard_ms <= self._session_ms

    # ---- heartbeats

    def expire(self, now_ms: float) -> None:
        """Fence the brokers whose session has expired, one after the other."""
        while self.expire_one(now_ms):
            pass

    def expire_one(self, now_ms: float) -> bool:
        """Fence one broker whose session has expired; return whether there was one."""
        for broker_id, broker in sorted(self.brokers.items()):
            session = self._sessions.get(broker_id)
            if not broker.is_fenced and (session is None or now_ms - session.heard_ms > self._session_ms):
                self.fence(broker_id)
                return True
        return False

    def beat(self, request: BrokerHeartbeatRequest, now_ms: float) -> BrokerHeartbeatResponse:
        """Handle a heartbeat: fence or unfence the broker, or begin its shutdown, as the heartbeat requests."""
        broker_id = request.broker_id
        broker = self.brokers.get(broker_id)
        if broker is None:
            return BrokerHeartbeatResponse(error_code=errors.BrokerIdNotRegisteredError.code)
        if broker.broker_epoch != request.broker_epoch:
            return BrokerHeartbeatResponse(error_code=errors.StaleBrokerEpochError.code)
        before = self._sessions.get(broker_id, Session(now_ms))
        self._sessions[broker_id] = before._replace(
            heard_ms=now_ms, is_heard=True, position=request.current_metadata_offset
        )
        should_stop = self._change_state(broker, request)
        return BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= self.register_offsets[broker_id],
            is_fenced=self.brokers[broker_id].is_fenced,
            should_shut_down=should_stop,
        )

    def _change_state(self, broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> bool:
        """Fence or unfence the broker, or begin its shutdown, as requested; return whether the broker may stop now."""
        broker_id = broker.broker_id
        if broker.is_fenced:
            if request.want_shut_down:
                return True
            if not request.want_fence and request.current_metadata_offset >= self.register_offsets[broker_id]:
                self._unfence(broker)
            return False
        if self._sessions[broker_id].shutdown_offset >= 0:
            return self._may_stop(broker_id)
        if request.want_fence:
            self.fence(broker_id)
            return request.want_shut_down
        return request.want_shut_down and self._begin_shutdown(broker)

    def _begin_shutdown(self, broker: BrokerRegistration) -> bool:
        """Elect other leaders for the broker's partitions; return whether the broker led none and may stop."""
        broker_id = broker.broker_id
        if not self._leads(broker_id):
            self.fence(broker_id)
            return True
        known = broker.in_controlled_shutdown
        change = [] if known else [_registration_change(broker, in_controlled_shutdown=IN_SHUTDOWN)]
        self.commit(*change, *self._changes(self._in_isr(broker_id), removed=broker_id))
        self._sessions[broker_id] = self._sessions[broker_id]._replace(shutdown_offset=self.offset)
        return False

    def _may_stop(self, broker_id: int) -> bool:
        """Return whether the broker leads no partition and all live brokers know this; if so, fence the broker."""
        active = [
            session.position
            for one, session in self._sessions.items()
            if not self.brokers[one].is_fenced and session.shutdown_offset < 0
        ]
        if self._leads(broker_id) or self._sessions[broker_id].shutdown_offset > min(active, default=1 << 62):
            return False
        self.fence(broker_id)
        return True

    def _leads(self, broker_id: int) -> bool:
        return any(place.state.leader == broker_id for place in self.places())

    def fence(self, broker_id: int) -> None:
        """Fence a broker: it leaves all ISRs and leads no partition. Its shutdown ends, except in its registration."""
        if broker_id in self._sessions:
            self._sessions[broker_id] = self._sessions[broker_id]._replace(shutdown_offset=-1)
        changes = self._changes(self._in_isr(broker_id), removed=broker_id)
        self.commit(*changes, _registration_change(self.brokers[broker_id], fenced=FENCE))

    def _unfence(self, broker: BrokerRegistration) -> None:
        leaderless = [place for place in self.places() if place.state.leader == NO_LEADER]
        changes = self._changes(leaderless, added=broker.broker_id)
        self.commit(_registration_change(broker, fenced=UNFENCE), *changes)
        # In Kafka the replay of this record resets the broker's position: to stop, a broker needs another heartbeat.
        self._sessions[broker.broker_id] = self._sessions[broker.broker_id]._replace(position=-1)

    # ---- partitions

    def _in_isr(self, broker_id: int) -> list[Place]:
        return [place for place in self.places() if broker_id in place.state.isr]

    def _changes(
        self, places: Iterable[Place], *, removed: int = NO_LEADER, added: int = NO_LEADER, unclean: int = NO_LEADER
    ) -> list[Message]:
        """Return the records of partitions after a broker is removed, is added, or returns after an unclean stop."""

        def is_acceptable(broker_id: int) -> bool:
            return broker_id not in (removed, unclean) and (broker_id == added or self.is_active(broker_id))

        found: list[Message] = []
        for place in places:
            rules = self.rules(place, is_acceptable)._replace(unclean_shutdown=unclean)
            isr = [one for one in place.state.isr if one not in (removed, unclean)]
            record = PartitionChange(place.state, rules, isr).build(place.topic_id, place.number)
            found += [] if record is None else [record]
        return found

    def rules(self, place: Place, is_acceptable: Callable[[int], bool] | None = None) -> Rules:
        """Return the conditions of a partition's change."""
        is_unclean = self.config(place.topic_id, UNCLEAN, "false") == "true"
        may_lead = is_acceptable or self.is_active

        def is_able(broker_id: int) -> bool:
            broker, directory = self.brokers.get(broker_id), place.state.directory_of(broker_id)
            return may_lead(broker_id) and broker is not None and is_online(broker, directory)

        return Rules(
            is_able,
            self.min_isr(place.topic_id, place.state),
            self._has_elr,
            Election.UNCLEAN if is_unclean else Election.ONLINE,
        )

    # ---- log directories

    def assign_directories(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        """Handle AssignReplicasToDirs: replicas in a directory that is not online leave the ISR."""
        broker = self.brokers.get(request.broker_id)
        if broker is None or broker.broker_epoch != request.broker_epoch:
            return AssignReplicasToDirsResponse(error_code=errors.StaleBrokerEpochError.code)
        decided: list[Message] = []
        lost: list[Place] = []
        for directory in request.directories:
            for topic in directory.topics:
                for one in topic.partitions:
                    place = self.place(topic.topic_id, one.partition_index)
                    record = self._assign(place, broker.broker_id, directory.id)
                    decided += [] if record is None else [record]
                    lost += [] if is_online(broker, directory.id) else [place]
        self.commit(*decided, *self._changes(lost, removed=broker.broker_id))
        return AssignReplicasToDirsResponse()

    def _assign(self, place: Place, broker_id: int, directory: bytes) -> Message | None:
        """Return the record that names a replica's directory, and the leader that is elected with the old one."""
        state = place.state
        rules = self.rules(place)._replace(election=Election.ONLINE)
        found = dict(zip(state.replicas, state.directories, strict=True)) | {broker_id: directory}
        return PartitionChange(state, rules, list(state.isr)).build(place.topic_id, place.number, list(found.values()))

    def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Handle AlterPartition: commit the valid ISRs that a leader proposes."""
        broker = self.brokers.get(request.broker_id)
        if broker is None or broker.broker_epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=errors.StaleBrokerEpochError.code)
        response = AlterPartitionResponse()
        decided: list[Message] = []
        for topic in request.topics:
            answers = [self._alter(request.broker_id, topic.topic_id, one, decided) for one in topic.partitions]
            response.topics.append(TopicDataResponse(topic_id=topic.topic_id, partitions=answers))
        self.commit(*decided)
        for answered in response.topics:
            for one in answered.partitions:
                self._fill_answer(answered.topic_id, one)
        return response

    def _alter(
        self, broker_id: int, topic_id: bytes, asked: PartitionData, decided: list[Message]
    ) -> PartitionDataResponse:
        answer = PartitionDataResponse(partition_index=asked.partition_index)
        topic = self.image.topics.get(topic_id)
        if topic is None:
            answer.error_code = errors.UnknownTopicIdError.code
            return answer
        if asked.partition_index >= len(topic.partitions):
            answer.error_code = errors.UnknownTopicOrPartitionError.code
            return answer
        place = self.place(topic_id, asked.partition_index)
        answer.error_code = self._error_of_alteration(broker_id, place.state, asked)
        if not answer.error_code:
            isr = [one.broker_id for one in asked.new_isr_with_epochs]
            change = PartitionChange(place.state, self.rules(place), isr, asked.leader_recovery_state)
            record = change.build(topic_id, place.number)
            decided += [] if record is None else [record]
        return answer

    def _error_of_alteration(self, broker_id: int, state: PartitionState, asked: PartitionData) -> int:
        isr = [one.broker_id for one in asked.new_isr_with_epochs]
        is_recovering = asked.leader_recovery_state == RECOVERING
        is_known = set(isr) <= set(state.replicas) and len(set(isr)) == len(isr) and state.leader in isr
        checks = (
            (asked.leader_epoch > state.leader_epoch, errors.NotControllerError),
            (asked.partition_epoch > state.partition_epoch, errors.NotControllerError),
            (asked.leader_epoch < state.leader_epoch, errors.FencedLeaderEpochError),
            (broker_id != state.leader, errors.InvalidRequestError),
            (asked.partition_epoch < state.partition_epoch, errors.InvalidUpdateVersionError),
            (not is_known, errors.InvalidRequestError),
            (is_recovering and (len(isr) > 1 or not state.is_recovering), errors.InvalidRequestError),
            (not all(map(self._is_eligible, asked.new_isr_with_epochs)), errors.IneligibleReplicaError),
        )
        return next((error.code for is_wrong, error in checks if is_wrong), 0)

    def _is_eligible(self, member: BrokerState) -> bool:
        broker = self.brokers.get(member.broker_id)
        return (
            broker is not None
            and self.is_active(member.broker_id)
            and member.broker_epoch in (ANY_EPOCH, broker.broker_epoch)
        )

    def _fill_answer(self, topic_id: bytes, answer: PartitionDataResponse) -> None:
        if answer.error_code:
            return
        state = self.place(topic_id, answer.partition_index).state
        answer.leader_id, answer.leader_epoch, answer.isr = state.leader, state.leader_epoch, list(state.isr)
        answer.leader_recovery_state, answer.partition_epoch = int(state.is_recovering), state.partition_epoch

    def place(self, topic_id: bytes, number: int) -> Place:
        """Return a partition."""
        return Place(topic_id, number, self.image.topics[topic_id].partitions[number])

    def elect(self, topic_id: bytes, number: int, *, is_unclean: bool = False) -> int:
        """Elect a partition's leader as kafka-leader-election does; return the error code."""
        place = self.place(topic_id, number)
        state = place.state
        if (state.leader != NO_LEADER) if is_unclean else (state.leader == state.replicas[0]):
            return errors.ElectionNotNeededError.code
        rules = self.rules(place)._replace(election=Election.UNCLEAN if is_unclean else Election.PREFERRED)
        record = PartitionChange(state, rules, list(state.isr)).build(topic_id, number)
        if record is None:
            unavailable = (
                errors.EligibleLeadersNotAvailableError if is_unclean else errors.PreferredLeaderNotAvailableError
            )
            return unavailable.code
        self.commit(record)
        return 0

    def elect_uncleanly(self) -> None:
        """Elect leaders for partitions without one, if their topics allow unclean elections."""
        for place in list(self.places()):
            if place.state.leader == NO_LEADER and self.rules(place).election is Election.UNCLEAN:
                self.elect(place.topic_id, place.number, is_unclean=True)


def is_online(broker: BrokerRegistration, directory: bytes | None) -> bool:
    """Return whether a directory of a broker works."""
    return directory in (*broker.directories, UNASSIGNED_DIRECTORY)


def _registration(
    request: BrokerRegistrationRequest, epoch: int, before: BrokerRegistration | None
) -> records.RegisterBrokerRecord:
    return records.RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=[
            records.RegisteredEndpoint(
                name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol
            )
            for one in request.listeners
        ],
        features=[
            records.RegisteredFeature(
                name=one.name, min_supported_version=one.min_supported_version,
                max_supported_version=one.max_supported_version,
            )
            for one in request.features
        ],
        rack=request.rack,
        fenced=before is None or before.is_fenced,
        in_controlled_shutdown=before is not None and before.in_controlled_shutdown,
        log_dirs=list(request.log_dirs),
    )  # fmt: skip


def _registration_change(
    broker: BrokerRegistration, *, fenced: int = 0, in_controlled_shutdown: int = 0
) -> records.BrokerRegistrationChangeRecord:
    return records.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )
