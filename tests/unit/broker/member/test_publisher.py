"""Publishing of images on a member: an error with one topic, at any step, does not keep other topics from their
changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from tidelog.broker.broker import Broker
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.publisher import PARTITIONS_PER_TURN, SAVING_THREADS, MetadataPublisher, make_own_logs
from tidelog.broker.member.replication import Replication
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import MetadataCache, TopicImage
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, MetadataImage, PartitionState, TopicState
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records import records
from tidelog.protocol.schema.fields import Message

NODE = 1
STEPS = ("topic_created", "topic_configs_changed", "topic_deleted")
NAMES = ["first", "second", "third"]
FIRST = b"first".ljust(16)
COMING = ["make_logs", "take_roles", "take_topic", "topic_created"]
CHANGING = ["take_roles", "take_topic", "topic_configs_changed"]
GOING = ["remove_topic", "remove_logs", "topic_deleted", "forget_topic"]


class Parts:
    """The parts of a member that get changes of topics; one step of one topic raises."""

    def __init__(self, image: MetadataImage, executor: ThreadPoolExecutor) -> None:
        self.broken: tuple[str, str] | None = None
        self.steps_done: list[tuple[str, str]] = []
        self.roles: list[int] = []
        """Partitions in which a role was taken."""
        self.shared: list[list[str]] = []
        """Steps that were done when the fetch loops were told, each time."""
        self.brokers_told = 0
        self.metadata = MetadataCache()
        replicas = SimpleNamespace(
            make_logs=lambda topic, _, is_coming: self.work("make_logs", topic),
            remove_logs=lambda topic: self.work("remove_logs", topic),
            take_roles=self.take_roles,
            **{name: self.step(name) for name in STEPS},
        )
        replication = SimpleNamespace(
            take_topic=self.step("take_topic"), remove_topic=self.step("remove_topic"), share_out=self.share_out
        )
        services = SimpleNamespace(forget_topic=self.step("forget_topic"))
        broker = SimpleNamespace(
            node_id=NODE, metadata=self.metadata, replica_manager=replicas, services=services, executor=executor,
            loop=asyncio.get_running_loop(),
        )  # fmt: skip
        self.controller = RemoteController(image, NODE)
        self.publisher = MetadataPublisher(
            cast("Broker", broker), self.controller, cast("MemberRoles", self), cast("Replication", replication)
        )

    def note(self, step: str, topic: TopicImage) -> None:
        """Record a step, or let it fail."""
        if self.broken == (step, topic.name):
            raise RuntimeError(step)
        self.steps_done.append((step, topic.name))

    def step(self, name: str) -> Callable[..., None]:
        return lambda topic, *_: self.note(name, topic)

    def take_roles(self, topic: TopicImage, indexes: range) -> None:
        self.roles += indexes
        if indexes.start == 0:
            self.note("take_roles", topic)

    async def share_out(self) -> None:
        self.shared.append([step for step, _ in self.steps_done])

    def work(self, name: str, topic: TopicImage) -> Callable[[], None]:
        return lambda: self.note(name, topic)

    def take_brokers(self) -> None:
        self.brokers_told += 1

    async def publish(self, *changes: Message) -> None:
        """Publish one image with these changes."""
        delta = MetadataDelta(self.controller.image)
        for record in changes:
            delta.replay(record)
        await self.publisher.publish(delta, delta.build(self.controller.end_offset, 1, 0))


def id_of(name: str) -> bytes:
    return name.encode().ljust(16)


def creation_records(name: str, partitions: int = 1, replicas: Sequence[int] = (NODE,)) -> list[Message]:
    topic_id, ids = id_of(name), list(replicas)
    return [
        records.TopicRecord(name=name, topic_id=topic_id),
        *(
            records.PartitionRecord(partition_id=number, topic_id=topic_id, replicas=ids, isr=ids, leader=NODE)
            for number in range(partitions)
        ),
    ]


def config(name: str) -> Message:
    return records.ConfigRecord(resource_type=2, resource_name=name, name="retention.ms", value="5")


async def publish_with_one_broken(step: str, changes: Callable[[str], list[Message]], *, is_there: bool) -> Parts:
    with ThreadPoolExecutor(1) as executor:
        parts = Parts(EMPTY_IMAGE, executor)
        if is_there:
            await parts.publish(*(record for name in NAMES for record in creation_records(name)))
            parts.steps_done.clear()
            parts.shared.clear()
        parts.broken = step, "second"
        broker = records.RegisterBrokerRecord(broker_id=2, broker_epoch=1)
        await parts.publish(*(record for name in NAMES for record in changes(name)), broker)
    return parts


@pytest.mark.parametrize(
    ("step", "steps", "changes"),
    [
        *((step, COMING, creation_records) for step in COMING),
        *((step, CHANGING, lambda name: [config(name)]) for step in CHANGING),
        *((step, GOING, lambda name: [records.RemoveTopicRecord(topic_id=id_of(name))]) for step in GOING),
    ],
)
def test_a_topic_that_fails_keeps_no_other_from_its_change(
    step: str, steps: list[str], changes: Callable[[str], list[Message]]
) -> None:
    parts = asyncio.run(publish_with_one_broken(step, changes, is_there=steps is not COMING))
    for name in ("first", "third"):
        assert [done for done, topic in parts.steps_done if topic == name] == steps
    assert [done for done, topic in parts.steps_done if topic == "second"] == steps[: steps.index(step)]
    assert parts.brokers_told == 1
    assert parts.controller.publishers.errors_total == 1


@pytest.mark.parametrize(
    ("changes", "noted", "is_there"),
    [
        (creation_records, COMING[:3], False),
        (lambda name: [config(name)], CHANGING[:2], True),
        (lambda name: [records.RemoveTopicRecord(topic_id=id_of(name))], GOING[:1], True),
    ],
)
def test_the_fetch_loops_get_all_topics_in_one_call(
    changes: Callable[[str], list[Message]], noted: list[str], is_there: bool
) -> None:
    parts = asyncio.run(publish_with_one_broken("", changes, is_there=is_there))
    assert parts.shared == [noted * len(NAMES)]


def test_a_topic_that_failed_once_is_taken_over_with_its_next_change() -> None:
    async def go() -> Parts:
        with ThreadPoolExecutor(1) as executor:
            parts = Parts(EMPTY_IMAGE, executor)
            parts.broken = "make_logs", "second"
            await parts.publish(*creation_records("second"))
            assert "second" not in parts.metadata.topics
            parts.broken = None
            await parts.publish(config("second"))
        return parts

    parts = asyncio.run(go())
    assert parts.steps_done == [(step, "second") for step in COMING]
    assert parts.metadata.topics["second"].configs == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("record", "is_told"),
    [
        (records.PartitionRecord(topic_id=FIRST, partition_id=1, replicas=[NODE], isr=[NODE], leader=NODE), True),
        (records.PartitionRecord(topic_id=FIRST, partition_id=1, replicas=[2], isr=[2], leader=2), False),
        (records.PartitionChangeRecord(topic_id=FIRST, partition_id=0, replicas=[NODE, 2], isr=[2], leader=2), True),
        (records.PartitionChangeRecord(topic_id=FIRST, partition_id=0, replicas=[2, 3]), False),
    ],
    ids=["new partition", "of another broker", "moved to this broker", "moved elsewhere"],
)
def test_the_indexer_hears_of_replicas_that_come_to_this_broker(record: Message, is_told: bool) -> None:
    async def go() -> Parts:
        with ThreadPoolExecutor(1) as executor:
            parts = Parts(EMPTY_IMAGE, executor)
            await parts.publish(*creation_records("first", replicas=[2]))
            parts.steps_done.clear()
            await parts.publish(record)
        return parts

    steps = [step for step, _ in asyncio.run(go()).steps_done]
    assert ("topic_created" in steps) == is_told


def test_fetches_of_a_deleted_topic_are_answered_also_if_its_logs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in the purgatory for the partitions of the topic."""

    def refuse() -> None:
        raise KafkaStorageError("read-only")

    async def go() -> Parts:
        with ThreadPoolExecutor(1) as executor:
            parts = Parts(EMPTY_IMAGE, executor)
            await parts.publish(*creation_records("first"))
            parts.steps_done.clear()
            monkeypatch.setattr(parts, "work", lambda *_: refuse)
            await parts.publish(records.RemoveTopicRecord(topic_id=id_of("first")))
        return parts

    parts = asyncio.run(go())
    assert [step for step, _ in parts.steps_done] == ["remove_topic", "topic_deleted", "forget_topic"]


@pytest.mark.parametrize(("topics", "partitions"), [(350, 1), (7, 60)])
def test_a_heartbeat_gets_its_turn_during_an_image_of_many_partitions(topics: int, partitions: int) -> None:
    """With sessions of 3 s a member of 10,000 partitions was fenced: what ended the changes took one turn."""
    names = [f"t{number}" for number in range(topics)]

    async def go() -> list[int]:
        with ThreadPoolExecutor(1) as executor:
            parts = Parts(EMPTY_IMAGE, executor)
            await parts.publish(*(record for name in names for record in creation_records(name, partitions)))
            parts.steps_done.clear()
            publishing = asyncio.create_task(parts.publish(*map(config, names)))
            done = []
            while not publishing.done():
                done.append(len(parts.steps_done))
                await asyncio.sleep(0)
        assert len(parts.steps_done) == len(CHANGING) * topics
        return [after - before for before, after in itertools.pairwise([*done, len(parts.steps_done)])]

    steps = asyncio.run(go())
    assert max(steps) * partitions <= len(CHANGING) * (PARTITIONS_PER_TURN + partitions)


@pytest.mark.parametrize("is_there", [False, True])
def test_roles_in_a_large_topic_are_taken_in_turns(is_there: bool) -> None:
    """An election of 10,000 partitions took one turn of 0.13 s."""
    count = 3 * PARTITIONS_PER_TURN + 1

    async def go() -> tuple[Parts, list[int]]:
        with ThreadPoolExecutor(1) as executor:
            parts = Parts(EMPTY_IMAGE, executor)
            changes = creation_records("big", count, replicas=(NODE, 2))
            if is_there:
                await parts.publish(*changes)
                parts.roles.clear()
                changes = [config("big")]
            publishing = asyncio.create_task(parts.publish(*changes))
            taken = []
            while not publishing.done():
                taken.append(len(parts.roles))
                await asyncio.sleep(0)
        return parts, taken

    parts, taken = asyncio.run(go())
    assert parts.roles == list(range(count))
    assert max(after - before for before, after in itertools.pairwise(taken)) == PARTITIONS_PER_TURN
    assert [step for step, _ in parts.steps_done] == (COMING + CHANGING if is_there else COMING)


# ---- the logs of a start


class Opening:
    """A broker that opens logs, and takes roles: three topics, of which it has every other partition."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.opened: list[tuple[str, int]] = []
        self.roles: list[tuple[str, int]] = []
        """Topics, and how many logs were open by then."""
        self.broken: tuple[str, int] | None = None
        self.followed: list[str] = []
        self.shared: list[list[str]] = []
        """Topics that were noted when the fetch loops were told, each time."""
        self.empty = {("big1", 3), ("two2", 1)}
        self.saved, self.attempts = 0, itertools.count()
        self.threads: set[str] = set()
        """Threads that opened logs."""
        self.saving: set[str] = set()
        """Threads that wrote leader epochs: the steps wait until all of them are at work."""
        self.all_save = threading.Barrier(SAVING_THREADS)
        replicas = SimpleNamespace(
            make_logs=self.make_logs,
            take_roles=self.take_roles,
            empty_logs=self.empty_logs,
            unsaved_epochs=lambda: [self] * SAVING_THREADS,
        )
        broker = SimpleNamespace(
            node_id=NODE, replica_manager=replicas, executor=executor, loop=asyncio.get_running_loop()
        )
        self.broker = cast("Broker", broker)
        self.image = MetadataImage(topics={name.encode() * 4: self.topic(name) for name in ("big1", "two2", "one3")})

    @staticmethod
    def topic(name: str) -> TopicState:
        count = {"big1": 107, "two2": 4, "one3": 1}[name]
        others = PartitionState((NODE + 1,), (NODE + 1,), leader=NODE + 1)
        ours = PartitionState((NODE + 1, NODE), (NODE + 1, NODE), leader=NODE + 1)
        states = tuple(ours if number % 2 == 1 else others for number in range(count))
        return TopicState(name=name, topic_id=name.encode() * 4, partitions=states)

    @property
    def own(self) -> set[tuple[str, int]]:
        topics = self.image.topics.values()
        return {(one.name, number) for one in topics for number in range(1, len(one.partitions), 2)}

    def make_logs(self, topic: TopicImage, indexes: list[int], *, saves_epochs: bool) -> Callable[[], None]:
        assert not saves_epochs

        def make() -> None:
            self.threads.add(threading.current_thread().name)
            for index in indexes:
                if self.broken == (topic.name, index):
                    raise KafkaStorageError("broken")
                self.opened.append((topic.name, index))

        return make

    def save(self) -> None:
        """Write the leader epochs of one log."""
        assert len(self.opened) == len(self.own)
        if self.broken == ("epochs", next(self.attempts)):
            raise KafkaStorageError("broken")
        self.saved += 1
        self.saving.add(threading.current_thread().name)
        if self.broken is None:
            self.all_save.wait(60)

    def take_roles(self, topic: TopicImage, indexes: range) -> None:
        assert self.saved == SAVING_THREADS, "an append after a crash stands in an epoch that begins there"
        if indexes.start == 0:
            self.roles.append((topic.name, len(self.opened)))

    def empty_logs(self) -> list[TopicPartition]:
        """Return the logs that are empty before a role is taken: a fetch may fill one after that."""
        assert self.roles == []
        return [TopicPartition(*one) for one in self.opened if one in self.empty]

    def take_topic(self, topic: TopicImage) -> None:
        self.followed.append(topic.name)

    async def share_out(self) -> None:
        self.shared.append(list(self.followed))


async def open_all(broken: tuple[str, int] | None = None) -> tuple[Opening, int]:
    """Open the logs of a start; return how many were open when it ended, too."""
    with ThreadPoolExecutor(SAVING_THREADS) as executor:
        opening = Opening(executor)
        opening.broken = broken
        with pytest.raises(KafkaStorageError, match="broken") if broken else contextlib.nullcontext():
            empty = await make_own_logs(opening.broker, opening.image, cast("Replication", opening))
            assert set(empty) == {TopicPartition(*one) for one in opening.empty}
        return opening, len(opening.opened)


def test_a_start_opens_each_of_its_logs_once_before_any_role_is_taken() -> None:
    opening, opened = asyncio.run(open_all())
    assert opened == len(opening.own)
    assert set(opening.opened) == opening.own
    assert opening.roles == [("big1", opened), ("two2", opened)], "one3 has no replica here"
    assert opening.shared == [["big1", "two2"]]


def test_one_thread_opens_the_logs_and_several_wait_for_the_disk() -> None:
    """Opening is work of the interpreter: four threads took three times as long as one."""
    opening, _ = asyncio.run(open_all())
    assert len(opening.threads) == 1
    assert len(opening.saving) == SAVING_THREADS


@pytest.mark.parametrize("broken", [("big1", 1), ("epochs", 1)])
def test_a_log_that_cannot_be_opened_refuses_the_start_when_no_thread_works_any_more(broken: tuple[str, int]) -> None:
    opening, opened = asyncio.run(open_all(broken=broken))
    assert len(opening.opened) == opened
    assert opening.saved == (SAVING_THREADS - 1 if broken[0] == "epochs" else 0), (
        "the other threads ended what they had"
    )
    assert opening.roles == []
