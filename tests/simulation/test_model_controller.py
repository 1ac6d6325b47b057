"""The model controller compared with Kafka's: the same requests, equal responses, equal records, except ids and epochs.

Sessions of brokers are so long that none ends, because a test cannot know when Kafka's controller would end one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from benchmarks.rivals.apache_kafka import CLUSTER_ID as REAL_CLUSTER_ID
from tests.support import model_controller
from tests.support.kraft_node import HOST, KraftNode, ports_of_controllers, wait_until
from tests.support.model_controller import ANY_EPOCH, MIN_ISR, UNCLEAN, ModelController
from tidelog.broker.cluster.observing.observer import Observer, ObserverConfig
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.member.connections.channel import Channel
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.metadata.image import LOST_DIRECTORY
from tidelog.broker.metadata.image_records import METADATA_VERSION
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.metadata.replay import MAX_BATCH_BYTES, MetadataReplay
from tidelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)
from tidelog.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
)
from tidelog.protocol.messages.assign_replicas_to_dirs import PartitionData as AssignedPartition
from tidelog.protocol.messages.assign_replicas_to_dirs import TopicData as AssignedTopic
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from tidelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.metadata_records import records
from tidelog.protocol.metadata_records.frames import decode_metadata_record
from tidelog.protocol.record.record_batch import RecordBatch
from tidelog.protocol.schema.fields import Message

pytestmark = [pytest.mark.java, pytest.mark.slow]
BROKERS = (101, 102, 103)
SEEDS = [int(word) for word in os.environ.get("TIDELOG_MODEL_SEEDS", "1").split(",")]
STEPS = 300
SESSION_MS = 600_000
TOPICS = {
    "two": {MIN_ISR: "2", UNCLEAN: "false"},
    "one": {MIN_ISR: "1", UNCLEAN: "false"},
    "all": {MIN_ISR: "3", UNCLEAN: "false"},
    "unclean": {MIN_ISR: "2", UNCLEAN: "true"},
}
ONE_NODE = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "auto.leader.rebalance.enable": "false",
    "metadata.max.idle.interval.ms": "0",  # after a NoOp record between two requests no broker would be caught up
}
Answer = TypeVar("Answer", bound=Message)


class RecordingReplay(MetadataReplay):
    """A replay of the metadata log that keeps the records."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Message] = []

    def take_batch(self, batch: RecordBatch) -> None:
        if not batch.is_control:
            self.seen += [decode_metadata_record(one.value or b"") for one in batch.records(MAX_BATCH_BYTES)]
        super().take_batch(batch)


class Fake(NamedTuple):
    """A broker that exists in requests only: the number of its process, and its epochs at both controllers."""

    incarnation: int
    real_epoch: int
    model_epoch: int


class Question(NamedTuple):
    """A request to the real controller and the same to the model; ``description`` names it."""

    description: str
    ask_real: Callable[[], Any]
    ask_model: Callable[[], Any]


class Pair:
    """A real controller and the model, which get the same requests."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._runner = asyncio.Runner()
        self._channel = Channel(60.0, PeerSecurity("CONTROLLER"))
        self._observing = Channel(60.0, PeerSecurity("CONTROLLER"))
        self._observer = Observer(ObserverConfig((address,)))
        self._replay = RecordingReplay()
        self._observer._replay = self._replay
        # A controller answers before it has written the levels of the features.
        wait_until(self.is_formatted, "the levels of features are written")
        has_elr = self._observer.image.features.get("eligible.leader.replicas.version", 0) > 0
        self.model = ModelController(has_elr=has_elr, session_ms=float("inf"))
        self.fakes = dict.fromkeys(BROKERS, Fake(0, -1, -1))
        self.topics: dict[str, bytes] = {}

    def is_formatted(self) -> bool:
        """Read the real metadata log up to its end, and return whether the levels of features are in it."""
        self.catch_up()
        return METADATA_VERSION in self._observer.image.features

    def close(self) -> None:
        """Close the connections."""
        self._channel.close()
        self._observing.close()
        self._runner.close()

    def ask(self, request: Message, kind: type[Answer]) -> Answer:
        """Send a request to the real controller."""
        return self._runner.run(self._channel.ask(self.address, request, kind))

    def catch_up(self) -> None:
        """Read the real metadata log up to its end; the records of an answered request are in it."""
        self._observer.is_caught_up = False
        while not self._observer.is_caught_up:
            request = self._observer.next_question().request
            assert isinstance(request, FetchRequest)
            request.max_wait_ms = 0
            answer = self._runner.run(self._observing.ask(self.address, request, FetchResponse))
            self._observer.take_answer(answer, 0.0)

    def observe(self) -> list[str]:
        """Return the real controller's records since the last call."""
        self.catch_up()
        seen, self._replay.seen = self._replay.seen, []
        return described(seen)

    def decided(self) -> list[str]:
        """Return the model's records since the last call."""
        made = [record for _, listed in self.model.commits for record in listed]
        self.model.commits = []
        return described(made)

    def fence(self, told: list[str]) -> None:
        """Fence the brokers in the model that the real controller has fenced, according to its records."""
        for text in told:
            if text.startswith("broker") and "fenced 1" in text:
                self.model.fence(int(text.split()[1]))

    def compare(self, question: Question) -> None:
        """Send a request to both controllers, and compare responses and records.

        The real controller may end a session before or after the request: the model is then tried in both ways.
        """
        before = self.observe()
        self.fence(before)
        assert before == self.decided(), question.description
        saved = self.model.save()
        real, after = question.ask_real(), self.observe()
        tried = []
        for ends_before, ends_after in ((False, False), (True, False), (False, True)):
            self.model.restore(saved)
            self.fence(after if ends_before else [])
            model = question.ask_model()
            self.fence(after if ends_after else [])
            tried.append((model, self.decided()))
            if tried[-1] == (real, after):
                break
        else:
            assert (real, after) == tried[0], question.description
        for topic in self.topics:
            real_states, model_states = self.states(topic)
            assert real_states == model_states, question.description

    def states(self, topic: str) -> tuple[list[PartitionState], list[PartitionState]]:
        """Return the states of a topic's partitions at the real controller and in the model."""
        real = self._observer.image.topics[self.topics[topic]].partitions
        model = self.model.image.topics[self.topics[topic]].partitions
        return [plain(one) for one in real], [plain(one) for one in model]

    # ---- requests to the real controller, then to the model

    def register(self, broker_id: int, *, is_new: bool, is_clean: bool) -> Question:
        """Build the registration of a broker's current process, or of a new one."""
        fake = self.fakes[broker_id]
        incarnation = fake.incarnation + is_new

        def ask_real() -> Any:
            request = registration_of(broker_id, incarnation)
            request.previous_broker_epoch = fake.real_epoch if is_clean else -1
            answer = self.ask(request, BrokerRegistrationResponse)
            if not answer.error_code:
                self.fakes[broker_id] = Fake(incarnation, answer.broker_epoch, -1)
            return answer.error_code

        def ask_model() -> Any:
            request = registration_of(broker_id, incarnation)
            request.cluster_id = model_controller.CLUSTER_ID
            request.previous_broker_epoch = fake.model_epoch if is_clean else -1
            now = self.fakes[broker_id]
            is_taken = now is not fake
            if is_taken and is_new:
                self.model.forget(broker_id)
            answer = self.model.register(request, 0.0)
            if is_taken:
                self.fakes[broker_id] = now._replace(model_epoch=answer.broker_epoch)
            return answer.error_code

        return Question(f"registration of {broker_id}: new {is_new}, clean {is_clean}", ask_real, ask_model)

    def beat(self, broker_id: int, *, is_behind: bool = False, fence: bool = False, stop: bool = False) -> Question:
        """Build the heartbeat of a broker."""
        fake = self.fakes[broker_id]

        def request(epoch: int, offset: int) -> BrokerHeartbeatRequest:
            return BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=epoch,
                current_metadata_offset=-1 if is_behind else offset,
                want_fence=fence,
                want_shut_down=stop,
            )

        return Question(
            f"heartbeat of {broker_id}: fence {fence}, stop {stop}, behind {is_behind}",
            lambda: facts_of(self.ask(request(fake.real_epoch, self._observer.image.offset), BrokerHeartbeatResponse)),
            lambda: facts_of(self.model.beat(request(fake.model_epoch, self.model.offset), 0.0)),
        )

    def alter(self, topic: str, sender: int, asked: PartitionData) -> Question:
        """Build an AlterPartition. The epoch of a member in ``asked`` is the difference to the member's right epoch."""
        members = [(one.broker_id, one.broker_epoch) for one in asked.new_isr_with_epochs]

        def request(epochs: dict[int, int]) -> AlterPartitionRequest:
            asked.new_isr_with_epochs = [
                BrokerState(broker_id=one, broker_epoch=ANY_EPOCH if shift == ANY_EPOCH else epochs[one] + shift)
                for one, shift in members
            ]
            named = TopicData(topic_id=self.topics[topic], partitions=[asked])
            return AlterPartitionRequest(broker_id=sender, broker_epoch=epochs[sender], topics=[named])

        def facts(answer: AlterPartitionResponse) -> Any:
            return answer.error_code, [one.partitions for one in answer.topics]

        real = {one: fake.real_epoch for one, fake in self.fakes.items()}
        model = {one: fake.model_epoch for one, fake in self.fakes.items()}
        return Question(
            f"{sender} proposes {asked} for {topic}",
            lambda: facts(self.ask(request(real), AlterPartitionResponse)),
            lambda: facts(self.model.alter_partition(request(model))),
        )

    def assign(self, topic: str, broker_id: int, directory: bytes) -> Question:
        """Build an AssignReplicasToDirs."""
        fake = self.fakes[broker_id]

        def request(epoch: int) -> AssignReplicasToDirsRequest:
            named = AssignedTopic(topic_id=self.topics[topic], partitions=[AssignedPartition(partition_index=0)])
            directories = [DirectoryData(id=directory, topics=[named])]
            return AssignReplicasToDirsRequest(broker_id=broker_id, broker_epoch=epoch, directories=directories)

        return Question(
            f"{broker_id} assigns {topic} to {directory!r}",
            lambda: self.ask(request(fake.real_epoch), AssignReplicasToDirsResponse).error_code,
            lambda: self.model.assign_directories(request(fake.model_epoch)).error_code,
        )

    def elect(self, topic: str, *, is_unclean: bool) -> Question:
        """Build an election."""
        partitions = TopicPartitions(topic=topic, partitions=[0])
        request = ElectLeadersRequest(election_type=int(is_unclean), topic_partitions=[partitions])

        def ask_real() -> Any:
            found = self.ask(request, ElectLeadersResponse).replica_election_results
            return [one.error_code for results in found for one in results.partition_result]

        return Question(
            f"election of {topic}: unclean {is_unclean}",
            ask_real,
            lambda: [self.model.elect(self.topics[topic], 0, is_unclean=is_unclean)],
        )

    def create(self, topic: str, configs: dict[str, str]) -> None:
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=list(BROKERS))
        wanted = CreatableTopic(
            name=topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        (made,) = self.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), CreateTopicsResponse).topics
        assert made.error_code == 0, made.error_message
        self.topics[topic] = made.topic_id
        self.model.create_topic(topic, made.topic_id, [BROKERS], configs)


def facts_of(answer: BrokerHeartbeatResponse) -> tuple[int, bool, bool, bool]:
    """Return the fields of a heartbeat's response that are compared."""
    return answer.error_code, answer.is_caught_up, answer.is_fenced, answer.should_shut_down


def registration_of(broker_id: int, incarnation: int) -> BrokerRegistrationRequest:
    """Build the registration of a broker's process."""
    return BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=REAL_CLUSTER_ID,
        incarnation_id=b"incarnation%d" % broker_id + incarnation.to_bytes(2, "big"),
        listeners=[Listener(name="PLAINTEXT", host=HOST, port=broker_id, security_protocol=0)],
        features=[
            Feature(name=name, min_supported_version=0 if name != "metadata.version" else 25, max_supported_version=top)
            for name, top in (
                ("metadata.version", 30),
                ("kraft.version", 1),
                ("transaction.version", 2),
                ("group.version", 1),
                ("eligible.leader.replicas.version", 1),
                ("share.version", 1),
                ("streams.version", 1),
            )
        ],
        log_dirs=[directory_of(broker_id)],
    )


def directory_of(broker_id: int) -> bytes:
    """Return the id of the log directory of a broker."""
    return b"directory-of-%d" % broker_id


def described(listed: list[Message]) -> list[str]:
    """Describe records of the kinds that the model writes, without epochs of brokers and offsets."""
    found = []
    for record in listed:
        if isinstance(record, records.PartitionChangeRecord):
            elr = None if record.eligible_leader_replicas is None else sorted(record.eligible_leader_replicas)
            found.append(
                f"change leader {record.leader} isr {record.isr} elr {elr} last {record.last_known_elr} "
                f"recovery {record.leader_recovery_state} in {record.directories} of {record.topic_id.hex()}"
            )
        elif isinstance(record, records.BrokerRegistrationChangeRecord):
            found.append(f"broker {record.broker_id} fenced {record.fenced} stopping {record.in_controlled_shutdown}")
        elif isinstance(record, records.RegisterBrokerRecord):
            found.append(
                f"register {record.broker_id} {record.incarnation_id.hex()} fenced {record.fenced} "
                f"stopping {record.in_controlled_shutdown}"
            )
        elif isinstance(record, records.PartitionRecord):
            found.append(f"partition {record.replicas} isr {record.isr} leader {record.leader}")
    return sorted_changes(found)


def sorted_changes(found: list[str]) -> list[str]:
    """Sort changes of partitions that follow each other by their texts, because Kafka's order is that of a hash map."""
    ordered: list[str] = []
    run: list[str] = []
    for text in found:
        if text.startswith("change"):
            run.append(text)
        else:
            ordered += [*sorted(run), text]
            run = []
    return ordered + sorted(run)


def plain(state: PartitionState) -> PartitionState:
    """Sort the eligible replicas of a state, which are a set."""
    return state._replace(elr=tuple(sorted(state.elr)))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    ports = ports_of_controllers(1)
    with KraftNode(tmp_path, 1, ports, overrides=ONE_NODE, in_shared_jvm=True):
        made = Pair(Address(HOST, ports[1]))
        yield made
        made.close()


class Script:
    """Requests drawn from a seed."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.random = random.Random(seed)

    def step(self) -> Question:
        """Return the next request."""
        kinds = (
            self.beat, self.beat, self.beat, self.alter, self.alter, self.alter, self.register, self.elect, self.assign
        )  # fmt: skip
        return self.random.choice(kinds)()

    def assign(self) -> Question:
        broker_id = self.random.choice(BROKERS)
        directory = self.random.choice([LOST_DIRECTORY, directory_of(broker_id)])
        return self.pair.assign(self.random.choice(list(TOPICS)), broker_id, directory)

    def beat(self) -> Question:
        chance = self.random
        return self.pair.beat(
            chance.choice(BROKERS),
            is_behind=chance.random() < 0.1,
            fence=chance.random() < 0.15,
            stop=chance.random() < 0.1,
        )

    def register(self) -> Question:
        chance = self.random
        return self.pair.register(chance.choice(BROKERS), is_new=chance.random() < 0.8, is_clean=chance.random() < 0.5)

    def elect(self) -> Question:
        return self.pair.elect(self.random.choice(list(TOPICS)), is_unclean=self.random.random() < 0.5)

    def alter(self) -> Question:
        topic = self.random.choice(list(TOPICS))
        _, (state,) = self.pair.states(topic)
        leads = state.leader >= 0 and self.random.random() < 0.9
        return self.pair.alter(topic, state.leader if leads else self.random.choice(BROKERS), self.proposal(state))

    def proposal(self, state: PartitionState) -> PartitionData:
        """Draw a proposal that is mostly right. A member's epoch is the difference to its right epoch."""
        chance = self.random
        members = chance.sample(BROKERS, chance.randrange(0, 4))
        if state.leader >= 0 and state.leader not in members and chance.random() < 0.9:
            members.append(state.leader)
        shifts = (0,) * 8 + (ANY_EPOCH, -1)
        return PartitionData(
            partition_index=chance.choice((0,) * 20 + (7,)),
            leader_epoch=state.leader_epoch + chance.choice((0,) * 12 + (-1, 1)),
            partition_epoch=state.partition_epoch + chance.choice((0,) * 12 + (-1, 1)),
            leader_recovery_state=chance.choice((0, 0, 0, 1)),
            new_isr_with_epochs=[BrokerState(broker_id=one, broker_epoch=chance.choice(shifts)) for one in members],
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_decides_as_a_real_controller(pair: Pair, seed: int) -> None:
    for broker_id in BROKERS:
        pair.compare(pair.register(broker_id, is_new=True, is_clean=False))
        pair.compare(pair.beat(broker_id))
    for topic, configs in TOPICS.items():
        pair.create(topic, configs)
    assert pair.observe() == pair.decided()
    script, told = Script(pair, seed), []
    for _ in range(STEPS):
        question = script.step()
        told.append(question.description)
        try:
            pair.compare(question)
        except AssertionError as error:
            error.add_note("\n".join(told[-15:]))
            raise
