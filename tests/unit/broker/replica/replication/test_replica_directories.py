"""Log directories of replicas: when they are reported to the controller, and until when."""

from __future__ import annotations

import random

import pytest

from tidelog.broker.metadata.image import LOST_DIRECTORY
from tidelog.broker.metadata.metadata_image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    TopicState,
)
from tidelog.broker.replica.replication.replica_directories import MAX_ASSIGNMENTS, ReplicaDirectories
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest

OWN, OTHER = 1, 2
FIRST, SECOND, THEIRS = b"1" * 16, b"2" * 16, b"x" * 16
TOPIC = b"t" * 16
Told = dict[int, bytes]


def image(directories: list[bytes]) -> MetadataImage:
    """Build an image with a topic; this broker's replicas of its partitions are in these directories."""
    partitions = tuple(
        PartitionState((OTHER, OWN), (OTHER, OWN), OTHER, directories=(THEIRS, one)) for one in directories
    )
    return MetadataImage(topics={TOPIC: TopicState("t", TOPIC, partitions)}, topic_ids={"t": TOPIC})


def directories_in(request: AssignReplicasToDirsRequest | None) -> Told:
    """Map partitions to directories, as a request assigns them."""
    if request is None:
        return {}
    assert (request.broker_id, request.broker_epoch) == (OWN, 9)
    assert {topic.topic_id for one in request.directories for topic in one.topics} == {TOPIC}
    return {
        partition.partition_index: one.id
        for one in request.directories
        for topic in one.topics
        for partition in topic.partitions
    }


def partitions(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(count)]


def test_directories_that_the_metadata_lack_are_reported_until_they_have_them() -> None:
    places = {TopicPartition("t", 0): FIRST, TopicPartition("t", 1): SECOND}
    replicas = ReplicaDirectories(OWN, places.get)
    replicas.note(partitions(2))
    for _ in range(2):
        assert directories_in(replicas.next_request(image([FIRST, THEIRS]), 9)) == {1: SECOND}
    assert directories_in(replicas.next_request(image([FIRST, SECOND]), 9)) == {}
    assert directories_in(replicas.next_request(image([FIRST, THEIRS]), 9)) == {1: SECOND}, (
        "an older request came after it"
    )


def test_partitions_without_a_log_or_replica_here_are_not_reported() -> None:
    places = {TopicPartition("t", 1): FIRST, TopicPartition("t", 7): FIRST, TopicPartition("gone", 0): FIRST}
    replicas = ReplicaDirectories(OTHER + 1, places.get)
    replicas.note([*partitions(8), TopicPartition("gone", 0)])
    assert replicas.next_request(image([FIRST, SECOND]), 9) is None
    assert replicas.next_request(EMPTY_IMAGE, 9) is None


SERVED = PartitionState((OTHER, OWN), (OTHER, OWN), directories=(THEIRS, FIRST))
"""A partition of whose two replicas this broker's is in its first directory."""


@pytest.mark.parametrize(
    ("state", "active", "is_reported"),
    [
        (SERVED._replace(leader=OWN), {OTHER}, True),
        (SERVED._replace(leader=OTHER), {OTHER}, True),
        (SERVED._replace(leader=OTHER, isr=(OTHER,)), {OTHER}, True),
        (SERVED._replace(leader=OWN, isr=(OWN,), elr=(OTHER,)), {OTHER}, True),
        (SERVED._replace(leader=OWN, isr=(OWN,), elr=(OTHER,)), set(), False),
        (SERVED._replace(leader=OWN, isr=(OWN,)), {OTHER}, False),
        (SERVED._replace(leader=OWN, replicas=(OWN,), isr=(OWN,), directories=(FIRST,)), {OTHER}, False),
    ],
)
def test_a_log_out_of_service_is_reported_as_lost_if_another_replica_can_lead(
    state: PartitionState, active: set[int], is_reported: bool
) -> None:
    """Otherwise the report would help no client."""
    replicas = ReplicaDirectories(OWN, {TopicPartition("t", 0): LOST_DIRECTORY}.get)
    replicas.note(partitions(1))
    registered = {
        one: BrokerRegistration(one, 9, b"i" * 16, (), {}, None, one not in {OWN, *active}, False, ())
        for one in (OWN, OTHER)
    }
    shown = MetadataImage(topics={TOPIC: TopicState("t", TOPIC, (state,))}, topic_ids={"t": TOPIC}, brokers=registered)
    for _ in range(2):
        assert directories_in(replicas.next_request(shown, 9)) == ({0: LOST_DIRECTORY} if is_reported else {})
    assert replicas.held_back == 0


NOT_LED = PartitionState((OTHER, OWN), (), last_known_elr=(OWN,), directories=(THEIRS, FIRST))
"""A partition without a leader, which this broker could lead."""


@pytest.mark.parametrize(
    ("state", "is_fenced", "directory", "is_reported"),
    [
        (NOT_LED, False, FIRST, True),
        (NOT_LED._replace(last_known_elr=(), elr=(OWN,)), False, FIRST, True),
        (NOT_LED, True, FIRST, False),
        (NOT_LED._replace(last_known_elr=(OTHER,)), False, FIRST, False),
        (NOT_LED._replace(leader=OTHER, isr=(OTHER,)), False, FIRST, False),
        (NOT_LED._replace(directories=(THEIRS, LOST_DIRECTORY)), False, LOST_DIRECTORY, False),
    ],
)
def test_a_directory_is_reported_again_if_the_controller_has_elected_no_leader(
    state: PartitionState, is_fenced: bool, directory: bytes, is_reported: bool
) -> None:
    """Kafka's controller elects a leader by the directory that a replica had before the request."""
    replicas = ReplicaDirectories(OWN, {TopicPartition("t", 0): directory}.get)
    own = BrokerRegistration(OWN, 9, b"i" * 16, (), {}, None, is_fenced, False, ())
    shown = MetadataImage(topics={TOPIC: TopicState("t", TOPIC, (state,))}, topic_ids={"t": TOPIC}, brokers={OWN: own})
    replicas.note(partitions(1))
    assert (directories_in(replicas.next_request(shown, 9)) == {0: FIRST}) is is_reported


LOST = PartitionState((OTHER, OWN), (), directories=(THEIRS, SECOND))
"""A partition without a leader; this broker's copy was in a directory that is gone."""


@pytest.mark.parametrize(
    ("state", "is_reported"),
    [
        (LOST._replace(isr=(OWN,)), False),
        (LOST._replace(elr=(OWN,)), False),
        (LOST._replace(last_known_elr=(OWN,)), False),
        (LOST._replace(elr=(OTHER,)), True),
        (LOST._replace(isr=(OTHER,), leader=OTHER, elr=(OWN,)), False),
        (LOST._replace(isr=(OTHER,), leader=OTHER), True),
        (LOST._replace(isr=(OTHER, OWN), leader=OTHER), True),
        (LOST._replace(isr=(OWN,), removing=(OTHER,)), True),
        (LOST._replace(isr=(OWN,), replicas=(OWN,), directories=(SECOND,)), True),
    ],
    ids=[
        "alone in sync", "eligible", "led last", "another is eligible", "eligible, not caught up", "not caught up",
        "caught up", "moved here alone", "one replica",
    ],
)  # fmt: skip
def test_an_empty_log_is_not_offered_over_the_copies_of_others(state: PartitionState, is_reported: bool) -> None:
    """The controller elects no replica without a directory. If it learned the new directory, it would elect the empty
    log, and the others would truncate theirs."""
    lost = MetadataImage(topics={TOPIC: TopicState("t", TOPIC, (state,))}, topic_ids={"t": TOPIC})
    for empty in (partitions(1), []):
        replicas = ReplicaDirectories(OWN, {TopicPartition("t", 0): FIRST}.get)
        replicas.note(partitions(1))
        replicas.note_empty(empty)
        for _ in range(2):
            assert directories_in(replicas.next_request(lost, 9)) == ({0: FIRST} if is_reported or not empty else {})


def test_a_log_that_was_empty_is_reported_when_it_has_caught_up() -> None:
    replicas = ReplicaDirectories(OWN, {TopicPartition("t", 0): FIRST}.get)
    replicas.note(partitions(1))
    replicas.note_empty(partitions(1))
    states = [LOST._replace(isr=(OWN,)), LOST._replace(isr=(OTHER,), leader=OTHER), LOST._replace(isr=(OWN,))]
    images = [MetadataImage(topics={TOPIC: TopicState("t", TOPIC, (one,))}, topic_ids={"t": TOPIC}) for one in states]
    assert [directories_in(replicas.next_request(one, 9)) for one in images] == [{}, {0: FIRST}, {0: FIRST}]


@pytest.mark.parametrize(
    ("state", "is_reported"),
    [
        (LOST._replace(isr=(OWN,)), False),
        (LOST._replace(isr=(OWN,), replicas=(OWN,), directories=(SECOND,)), False),
        (LOST._replace(isr=(OTHER, OWN), leader=OTHER), True),
        (LOST._replace(elr=(OTHER,)), True),
    ],
    ids=["alone in sync", "one replica", "caught up", "another is eligible"],
)
def test_a_copy_of_a_log_in_a_failed_directory_is_not_reported(state: PartitionState, is_reported: bool) -> None:
    """According to the metadata the log is in the failed directory: this may be an older copy."""
    known = MetadataImage(topics={TOPIC: TopicState("t", TOPIC, (state,))}, topic_ids={"t": TOPIC})
    replicas = ReplicaDirectories(OWN, {TopicPartition("t", 0): FIRST}.get)
    replicas.note(partitions(1))
    replicas.note_displaced(partitions(1))
    for _ in range(2):
        assert directories_in(replicas.next_request(known, 9)) == ({0: FIRST} if is_reported else {})


@pytest.mark.parametrize(
    ("place", "is_reported"),
    [(bytes(16), True), (bytes(15) + b"\1", True), (bytes(15) + b"\2", False), (SECOND, False)],
)
def test_a_log_that_may_be_in_a_failed_directory_is_reported_as_lost(place: bytes, is_reported: bool) -> None:
    """A replica without a directory would be elected."""
    found: dict[TopicPartition, bytes] = {}
    replicas = ReplicaDirectories(OWN, found.get)
    replicas.note_lost(partitions(1))
    assert directories_in(replicas.next_request(image([place]), 9)) == ({0: bytes(15) + b"\2"} if is_reported else {})
    found.update(dict.fromkeys(partitions(1), FIRST))
    replicas.note(partitions(1))
    assert directories_in(replicas.next_request(image([place]), 9)) == {0: FIRST}, "it is here after all"


def test_each_request_is_limited_and_all_logs_are_reported() -> None:
    """Whatever order answers and images come in, the metadata end as the logs lie."""
    rng = random.Random(1)
    count = MAX_ASSIGNMENTS + 100
    wanted = {partition: rng.choice([FIRST, SECOND]) for partition in partitions(count)}
    known = [rng.choice([FIRST, SECOND, THEIRS]) for _ in wanted]
    replicas = ReplicaDirectories(OWN, wanted.get)
    replicas.note(wanted)
    while request := directories_in(replicas.next_request(image(known), 9)):
        assert len(request) <= MAX_ASSIGNMENTS
        for number, directory_id in request.items():
            if rng.random() < 0.8:  # the others were refused, or the answer was lost
                known[number] = directory_id
    assert known == list(wanted.values())


def test_a_refused_directory_does_not_delay_others() -> None:
    replicas = ReplicaDirectories(OWN, lambda _: FIRST)
    replicas.note(partitions(MAX_ASSIGNMENTS + 1))
    known = image([THEIRS] * (MAX_ASSIGNMENTS + 1))
    assert set(directories_in(replicas.next_request(known, 9))) == set(range(MAX_ASSIGNMENTS))
    assert MAX_ASSIGNMENTS in directories_in(replicas.next_request(known, 9))


def test_elections_hold_no_new_log_up() -> None:
    """The end of one broker may change each partition of a cluster."""
    count = 2 * MAX_ASSIGNMENTS
    places = dict.fromkeys(partitions(count), FIRST)
    replicas = ReplicaDirectories(OWN, places.get)
    before = image([FIRST] * count + [THEIRS])
    assert directories_in(replicas.next_request(before, 9)) == {}
    topic = before.topics[TOPIC]
    elected = topic._replace(partitions=tuple(one._replace(leader=OWN, isr=(OWN,)) for one in topic.partitions))
    after = before._replace(topics={TOPIC: elected})
    assert directories_in(replicas.next_request(after, 9)) == {}
    made = TopicPartition("t", count)
    places[made] = SECOND
    replicas.note([made])
    assert directories_in(replicas.next_request(after, 9)) == {count: SECOND}


@pytest.mark.parametrize("seed", range(30))
def test_the_metadata_agree_with_the_logs_in_the_end_when_requests_overtake_one_another(seed: int) -> None:
    """Logs move between directories while requests are lost, refused, or taken late, after newer ones."""
    rng = random.Random(seed)
    places = {partition: rng.choice([FIRST, SECOND]) for partition in partitions(5)}
    known = [rng.choice([FIRST, SECOND]) for _ in places]
    replicas = ReplicaDirectories(OWN, places.get)
    replicas.note(places)
    under_way: list[Told] = []
    for _ in range(60):
        if rng.random() < 0.3:
            moved = rng.choice(list(places))
            places[moved] = rng.choice([FIRST, SECOND])
            replicas.note([moved])
        if rng.random() < 0.6:
            under_way.append(directories_in(replicas.next_request(image(known), 9)))
        if under_way and rng.random() < 0.5:
            for number, directory_id in under_way.pop(rng.randrange(len(under_way))).items():
                known[number] = directory_id
    for late in under_way:
        for number, directory_id in late.items():
            known[number] = directory_id
    while request := directories_in(replicas.next_request(image(known), 9)):
        for number, directory_id in request.items():
            known[number] = directory_id
    assert known == list(places.values())
