"""Scripts about share groups (KIP-932): members, share sessions, acquired records, acknowledgements, offsets, states.

SHARE_SCRIPTS is a table apart from SCRIPTS, because these scripts need brokers with settings for share groups and for
the topic ``__share_group_state``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.support.questions import Broker
from tests.support.scripts.groups import join_stable_group
from tests.support.scripts.registry import WAIT_S, Entry, Script, batch, configure_group, create, topic_id, write
from tidelog.protocol.errors import CoordinatorLoadInProgressError

UNKNOWN_ID = b"\x06" * 16
SETTLE_S = 0.3
"""Seconds that a script waits for Kafka's work after a response: the release of a session's records, or markers."""
WAIT_MS = 500
"""Longest wait of a fetch in ms: Apache Kafka may need it for existing records if other processes need the CPU."""
SHARE_SCRIPTS: list[Entry] = []


def share_script(api: str) -> Callable[[Script], Script]:
    """Register a script for an API of share groups."""

    def register(run: Script) -> Script:
        SHARE_SCRIPTS.append(Entry(api, run))
        return run

    return register


def member(broker: Broker, group: str, topic: str, member_id: str = "m") -> int:
    """Send heartbeats of a new member until it has an assignment; return its epoch."""
    deadline = time.monotonic() + WAIT_S
    epoch = 0
    while True:
        names = [topic] if epoch == 0 else None
        answer = broker.ask_quietly(
            "share_group_heartbeat",
            1,
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=names,
        )
        assert answer.error_code in (0, CoordinatorLoadInProgressError.code), answer
        if answer.error_code == 0:
            epoch = answer.member_epoch
        if answer.assignment is not None and answer.assignment.topic_partitions:
            return int(epoch)
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def leave_group(broker: Broker, group: str, member_id: str = "m") -> None:
    """Let a member leave, close the connection, and wait SETTLE_S for Kafka's work after that."""
    fields = {"group_id": group, "member_id": member_id, "member_epoch": -1}
    answer = broker.ask_quietly("share_group_heartbeat", 1, **fields)
    assert answer.error_code == 0, answer
    broker.close()
    time.sleep(SETTLE_S)


class Reader:
    """A member of a share group that fetches from partition 0 of one topic, and the epoch of its share session.

    An acknowledgement is a first offset, a last offset, and acknowledge types: one for all records, or one for each.
    """

    def __init__(self, broker: Broker, group: str, topic: str, member_id: str = "m") -> None:
        self.broker = broker
        self.topic_id = topic_id(broker, topic)
        self.who = {"group_id": group, "member_id": member_id}
        self.epoch = 0

    def fetch(
        self, version: int, *acknowledgements: tuple[int, int, list[int]], quiet: bool = False, **fields: Any
    ) -> Any:
        """Send one ShareFetch of partition 0; the response to a ``quiet`` one is not compared."""
        ask = self.broker.ask_quietly if quiet else self.broker.ask
        answer = ask("share_fetch", version, **self.request(*acknowledgements, **fields))
        self.epoch += 1
        return answer

    def acknowledge(self, version: int, *acknowledgements: tuple[int, int, list[int]], **fields: Any) -> Any:
        """Send one ShareAcknowledge of partition 0."""
        values = {**self.who, "share_session_epoch": self.epoch, "topics": self.topics(*acknowledgements), **fields}
        answer = self.broker.ask("share_acknowledge", version, **values)
        self.epoch += 1
        return answer

    def topics(self, *acknowledgements: tuple[int, int, list[int]]) -> list[dict[str, Any]]:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": types}
            for first, last, types in acknowledgements
        ]
        partition = {"partition_index": 0, "acknowledgement_batches": batches}
        return [{"topic_id": self.topic_id, "partitions": [partition]}]

    def request(self, *acknowledgements: tuple[int, int, list[int]], **fields: Any) -> dict[str, Any]:
        return {
            **self.who,
            "share_session_epoch": self.epoch,
            "max_wait_ms": WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "max_records": 500,
            "batch_size": 500,
            "topics": self.topics(*acknowledgements),
            **fields,
        }


def prepare_reader(broker: Broker, name: str, batches: int = 3, **configs: str) -> Reader:
    """Create a topic with batches of ten records, and a share group of the same name, which reads all of them.

    Returns the group's only member, which has acquired no record yet.
    """
    configure_group(broker, name, **{"share_auto_offset_reset": "earliest", **configs})
    create(broker, name)
    for number in range(batches):
        write(broker, name, *(f"{number}-{record}".encode() for record in range(10)))
    member(broker, name, name)
    reader = Reader(broker, name, name)
    deadline = time.monotonic() + WAIT_S
    while True:  # until the share partition is loaded
        answer = reader.fetch(1, quiet=True, max_records=0)
        assert answer.error_code == 0, answer
        if not any(partition.error_code for topic in answer.responses for partition in topic.partitions):
            return reader
        assert time.monotonic() < deadline, answer


@share_script("share_group_heartbeat")
def heartbeats(broker: Broker, version: int) -> None:
    create(broker, "hb")
    join_stable_group(broker, "hb-classic", "hb")
    asks = [
        {"group_id": "", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["hb"]},
        {"group_id": "hb-none", "member_id": "", "member_epoch": 0, "subscribed_topic_names": ["hb"]},
        {"group_id": "hb-none", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": None},
        {"group_id": "hb-none", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": []},
        {"group_id": "hb-none", "member_id": "m", "member_epoch": 1},
        {"group_id": "hb-none", "member_id": "m", "member_epoch": -1},
        {"group_id": "hb-none", "member_id": "m", "member_epoch": -2},
        {"group_id": "hb-none", "member_id": "m", "member_epoch": 0, "rack_id": "", "subscribed_topic_names": ["hb"]},
        {"group_id": "hb-classic", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["hb"]},
        {"group_id": "hb-classic", "member_id": "m", "member_epoch": -1},
    ]
    for fields in asks:
        broker.ask("share_group_heartbeat", version, **fields)
    epoch = member(broker, "hb-group", "hb")
    group: dict[str, Any] = {"group_id": "hb-group"}
    broker.ask("share_group_heartbeat", version, **group, member_id="m", member_epoch=epoch)
    broker.ask("share_group_heartbeat", version, **group, member_id="m", member_epoch=epoch + 7)
    broker.ask("share_group_heartbeat", version, **group, member_id="other", member_epoch=epoch)
    broker.ask("share_group_heartbeat", version, **group, member_id="other", member_epoch=-1)
    full = {"member_id": "m", "member_epoch": epoch, "subscribed_topic_names": ["hb"]}
    broker.ask("share_group_heartbeat", version, **group, **full)
    broker.ask("share_group_heartbeat", version, **group, member_id="m", member_epoch=-1)
    broker.ask("share_group_heartbeat", version, **group, member_id="m", member_epoch=-1)


@share_script("share_group_describe")
def describe(broker: Broker, version: int) -> None:
    create(broker, "sd", 2)
    join_stable_group(broker, "sd-classic", "sd")
    member(broker, "sd-group", "sd")
    groups = ["sd-group", "sd-none", "sd-classic", ""]
    for flag in (False, True):
        broker.ask("share_group_describe", version, group_ids=groups, include_authorized_operations=flag)
    broker.ask("consumer_group_describe", 0, group_ids=["sd-group"])
    for each in (4, 6):
        broker.ask("describe_groups", each, groups=["sd-group"])
    broker.ask("delete_groups", 2, groups_names=["sd-group"])
    leave_group(broker, "sd-group")
    broker.ask("share_group_describe", version, group_ids=["sd-group"])
    broker.ask("delete_groups", 2, groups_names=["sd-group", "sd-none"])
    broker.ask("share_group_describe", version, group_ids=["sd-group"])


@share_script("share_group_heartbeat")
def other_protocols(broker: Broker, version: int) -> None:
    """Send requests of the classic and the consumer protocol with the id of a share group."""
    create(broker, "op")
    member(broker, "op-group", "op")
    join = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}
    broker.ask("join_group", 5, group_id="op-group", protocols=[{"name": "range", "metadata": b""}], **join)
    broker.ask(
        "consumer_group_heartbeat",
        1,
        group_id="op-group",
        member_id="c",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["op"],
        topic_partitions=[],
    )
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    commit = {"group_id": "op-group", "topics": [{"name": "op", "partitions": [partition]}]}
    for each in (8, 9):
        broker.ask("offset_commit", each, generation_id_or_member_epoch=-1, **commit)
    asked = [{"group_id": "op-group", "topics": [{"name": "op", "partition_indexes": [0]}]}]
    broker.ask("offset_fetch", 9, groups=asked)
    broker.ask("offset_delete", 0, group_id="op-group", topics=[{"name": "op", "partitions": [{"partition_index": 0}]}])
    broker.ask("heartbeat", 4, group_id="op-group", member_id="m", generation_id=1)
    broker.ask("leave_group", 4, group_id="op-group", members=[{"member_id": "m"}])
    leave_group(broker, "op-group")


@share_script("share_fetch")
def sessions(broker: Broker, version: int) -> None:
    """Send requests with members, session epochs and partitions that are not valid; then close a session twice."""
    reader = prepare_reader(broker, f"se{version}")
    other = Reader(broker, f"se{version}", f"se{version}", "other")
    for fields in (
        {"group_id": None},
        {"member_id": None},
        {"member_id": ""},
        {"member_id": "x" * 37},
        {"share_session_epoch": 1},
        {"share_session_epoch": -1},
    ):
        broker.ask("share_fetch", version, **{**other.request(), **fields})
        acknowledge = {**other.who, "share_session_epoch": 1, "topics": []}
        broker.ask("share_acknowledge", version, **{**acknowledge, **fields})
    broker.ask("share_fetch", version, **reader.request(share_session_epoch=reader.epoch + 5))
    broker.ask("share_fetch", version, **other.request((0, 0, [1])))
    broker.ask("share_acknowledge", version, **reader.who, share_session_epoch=0, topics=[])
    broker.ask("share_acknowledge", version, **reader.who, share_session_epoch=77, topics=[])
    unknown: list[dict[str, Any]] = [{"topic_id": UNKNOWN_ID, "partitions": [{"partition_index": 0}]}]
    absent: list[dict[str, Any]] = [{"topic_id": reader.topic_id, "partitions": [{"partition_index": 9}]}]
    for topics in (unknown, absent):
        broker.ask("share_fetch", version, **other.request(topics=topics, share_session_epoch=0))
        broker.ask("share_acknowledge", version, **other.who, share_session_epoch=1, topics=topics)
        types = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
        for topic in topics:
            topic["partitions"][0]["acknowledgement_batches"] = types
        broker.ask("share_acknowledge", version, **other.who, share_session_epoch=2, topics=topics)
        for topic in topics:
            del topic["partitions"][0]["acknowledgement_batches"]
    reader.fetch(version)
    reader.fetch(version, topics=[])
    reader.fetch(version, topics=[], forgotten_topics_data=[{"topic_id": reader.topic_id, "partitions": [0]}])
    broker.ask("share_fetch", version, **reader.request(share_session_epoch=-1, topics=[]))
    broker.ask("share_fetch", version, **reader.request(share_session_epoch=-1, topics=[]))


@share_script("share_fetch")
def acquiring(broker: Broker, version: int) -> None:
    """Acquire records within several limits; accept, release and reject some records, and fetch again."""
    reader = prepare_reader(broker, f"aq{version}", 6)
    reader.fetch(version, max_records=1)
    reader.fetch(version, max_records=15, batch_size=10)
    reader.fetch(version, batch_size=10)
    reader.fetch(version)
    reader.fetch(version, (10, 19, [2]), (20, 24, [2]), max_records=0)
    reader.fetch(version, max_records=500)
    reader.fetch(version, (0, 9, [1]), (12, 13, [1]), (30, 39, [3]))
    reader.fetch(version, (10, 11, [0, 2]))
    reader.fetch(version, max_bytes=1)
    reader.fetch(version, max_bytes=0)
    write(broker, f"aq{version}", b"new")
    reader.fetch(version, min_bytes=1_000)


@share_script("share_fetch")
def strictly(broker: Broker, version: int) -> None:
    """Fetch with share_acquire_mode 1, in which a fetch acquires ``max_records`` records at most."""
    if version < 2:
        return
    reader = prepare_reader(broker, "st", 3)
    for count in (4, 10, 500):
        reader.fetch(version, max_records=count, share_acquire_mode=1)
    reader.fetch(version, (0, 3, [2]), (8, 11, [2]), max_records=0)
    reader.fetch(version, max_records=3, share_acquire_mode=1)
    reader.fetch(version, max_records=30, share_acquire_mode=1)


@share_script("share_acknowledge")
def acknowledging(broker: Broker, version: int) -> None:
    """Acknowledge ranges and types that are not valid, valid ones, and records that another member has acquired."""
    reader = prepare_reader(broker, f"ac{version}", 3)
    reader.fetch(version, max_records=20)
    for bad in (
        (5, 4, [1]),
        (0, 4, []),
        (0, 4, [1, 1]),
        (0, 4, [5]),
        (0, 4, [-1]),
        (0, 4, [4]),
        (0, 100, [1]),
        (100, 110, [1]),
        (25, 25, [1]),
    ):
        reader.acknowledge(version, bad)
    reader.acknowledge(version, (5, 9, [1]), (3, 4, [1]))
    reader.acknowledge(version, (0, 4, [1]), (4, 6, [1]))
    reader.acknowledge(version)
    reader.acknowledge(version, topics=[])
    reader.acknowledge(version, (0, 4, [1]), (5, 9, [1, 2, 3, 0, 1]))
    reader.acknowledge(version, (0, 4, [1]))
    reader.acknowledge(version, (5, 5, [1]))
    reader.acknowledge(version, (6, 6, [1]))
    other = Reader(broker, f"ac{version}", f"ac{version}", "other")
    other.fetch(version, max_records=1)
    other.acknowledge(version, (10, 19, [1]))
    reader.acknowledge(version, (10, 12, [1]), share_session_epoch=-1)
    time.sleep(SETTLE_S)
    other.fetch(version)
    other.acknowledge(version, topics=[], share_session_epoch=-1)
    other.acknowledge(version, topics=[], share_session_epoch=-1)


@share_script("share_acknowledge")
def renewing(broker: Broker, version: int) -> None:
    """Renew acquired records (acknowledge type 4), in versions that can."""
    reader = prepare_reader(broker, f"rn{version}")
    reader.fetch(version)
    if version < 2:
        return
    nothing: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    reader.acknowledge(version, (0, 4, [4]), is_renew_ack=True)
    reader.acknowledge(version, (0, 4, [4]))
    reader.fetch(version, (0, 4, [4]), is_renew_ack=True, **nothing)
    broker.ask("share_fetch", version, **reader.request((0, 4, [4]), is_renew_ack=True))
    reader.acknowledge(version, (0, 4, [4, 1, 4, 2, 3]), is_renew_ack=True)


@share_script("share_acknowledge")
def renewing_where_it_is_off(broker: Broker, version: int) -> None:
    """Renew acquired records in a group whose config does not allow it."""
    reader = prepare_reader(broker, f"ro{version}", share_renew_acknowledge_enable="false")
    reader.fetch(version)
    if version >= 2:
        reader.acknowledge(version, (10, 14, [4]), is_renew_ack=True)


@share_script("share_fetch")
def limit(broker: Broker, version: int) -> None:
    """Release records until their delivery count has reached its limit."""
    reader = prepare_reader(broker, f"li{version}", 1, share_delivery_count_limit="4")
    for _ in range(2):
        reader.fetch(version)
        reader.fetch(version, (0, 9, [2]), max_records=0)
    for _ in range(4):
        answer = reader.fetch(version)
        data = answer.responses[0].partitions[0]
        runs = [(run.first_offset, run.last_offset, [2]) for run in data.acquired_records]
        reader.fetch(version, *runs, max_records=0)


@share_script("share_fetch")
def committed(broker: Broker, version: int) -> None:
    """Read a topic with committed, aborted and open transactions in a group with read_committed."""
    name = f"tx{version}"
    configure_group(broker, name, share_auto_offset_reset="earliest", share_isolation_level="read_committed")
    create(broker, name)
    for commit in (True, False, None):
        transact(broker, name, f"{name}-{commit}", commit=commit)
        write(broker, name, b"plain")
    member(broker, name, name)
    reader = Reader(broker, name, name)
    reader.fetch(version, quiet=True, max_records=0)
    reader.fetch(version, max_wait_ms=10_000)  # a busy Kafka has needed more than WAIT_MS to load and read
    reader.fetch(version)


def transact(broker: Broker, topic: str, transactional_id: str, *, commit: bool | None) -> None:
    """Write two records in a transaction, which is then committed, aborted, or left open (None)."""
    producer = broker.ask_quietly(
        "init_producer_id", 3, transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    who = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    topics = [{"name": topic, "partitions": [0]}]
    added = broker.ask_quietly(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=topics,
    )
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0, added
    records = batch(b"a", b"b", **who, base_sequence=0, is_transactional=True)
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    asked = {"transactional_id": transactional_id, "acks": -1, "timeout_ms": 5_000, "topic_data": data}
    response = broker.ask_quietly("produce", 7, **asked)
    assert response.responses[0].partition_responses[0].error_code == 0, response
    if commit is not None:
        ended = broker.ask_quietly("end_txn", 3, transactional_id=transactional_id, **who, committed=commit)
        assert ended.error_code == 0, ended
        time.sleep(SETTLE_S)


def describe_offsets(broker: Broker, version: int, group: str, topics: Any) -> Any:
    """Send DescribeShareGroupOffsets for one group."""
    return broker.ask("describe_share_group_offsets", version, groups=[{"group_id": group, "topics": topics}])


@share_script("describe_share_group_offsets")
def offsets(broker: Broker, version: int) -> None:
    name = f"of{version}"
    reader = prepare_reader(broker, name, 3)
    for group in (name, "of-none", ""):
        for topics in (None, [], [{"topic_name": name, "partitions": [0]}]):
            describe_offsets(broker, version, group, topics)
    reader.fetch(1, max_records=20)
    reader.acknowledge(1, (10, 14, [1]))
    describe_offsets(broker, version, name, None)
    reader.acknowledge(1, topics=[], share_session_epoch=-1)
    describe_offsets(broker, version, name, None)
    leave_group(broker, name)
    describe_offsets(broker, version, name, None)
    if version == 0:  # Kafka looks for unknown partitions for over 20 s, and members time out meanwhile
        unknown = [{"topic_name": name, "partitions": [0, 7]}, {"topic_name": "none", "partitions": [0]}]
        describe_offsets(broker, version, name, unknown)


@share_script("alter_share_group_offsets")
def alter(broker: Broker, version: int) -> None:
    """Alter offsets of a group with a member, of unknown groups, and of the group after its member has left."""
    name = "al"
    reader = prepare_reader(broker, name, 3)
    partitions = [{"partition_index": 0, "start_offset": 5}, {"partition_index": 4, "start_offset": 5}]
    topics = [{"topic_name": name, "partitions": partitions}, {"topic_name": "al-none", "partitions": partitions}]
    broker.ask("alter_share_group_offsets", version, group_id=name, topics=topics)
    reader.fetch(1, max_records=20)
    leave_group(broker, name)
    for group in ("", "al-other", name):
        broker.ask("alter_share_group_offsets", version, group_id=group, topics=topics)
        describe_offsets(broker, 1, group, [{"topic_name": name, "partitions": [0]}])
    broker.ask("share_group_describe", 1, group_ids=[name, "al-other"])
    member(broker, name, name)
    again = Reader(broker, name, name)
    again.fetch(1, quiet=True, max_records=0)
    again.fetch(1, max_records=1)


@share_script("delete_share_group_offsets")
def delete(broker: Broker, version: int) -> None:
    """Delete offsets of a group with a member, of unknown groups, and of the group after its member has left."""
    name = "dl"
    reader = prepare_reader(broker, name, 2)
    topics = [{"topic_name": name}, {"topic_name": "dl-none"}]
    broker.ask("delete_share_group_offsets", version, group_id=name, topics=topics)
    reader.fetch(1, max_records=20)
    reader.acknowledge(1, (0, 9, [1]))
    leave_group(broker, name)
    for group in ("", "dl-other", name, name):
        broker.ask("delete_share_group_offsets", version, group_id=group, topics=topics)
        describe_offsets(broker, 1, group, None)
    member(broker, name, name)
    again = Reader(broker, name, name)
    again.fetch(1, quiet=True, max_records=0)
    again.fetch(1, max_records=1)


# -- requests of other brokers to the share coordinator ---------------------------------------------------------------


class States:
    """Requests to the share coordinator about a group that has no members."""

    def __init__(self, broker: Broker, name: str) -> None:
        reader = prepare_reader(broker, name, 3)  # the coordinator is available once a member has an assignment
        reader.fetch(1, quiet=True, max_records=1)
        self.broker, self.group, self.topic_id = broker, f"{name}-states", reader.topic_id

    def ask(self, what: str, version: int, topic_id: bytes | None = None, **fields: Any) -> Any:
        """Send one request about partition 0, unless ``fields`` name another."""
        partitions = [{"partition": 0, **fields}]
        topics = [{"topic_id": self.topic_id if topic_id is None else topic_id, "partitions": partitions}]
        return self.broker.ask(what, version, group_id=self.group, topics=topics)

    def initialize(self, state_epoch: int, start_offset: int, **fields: Any) -> Any:
        """Send InitializeShareGroupState."""
        named = {"state_epoch": state_epoch, "start_offset": start_offset, **fields}
        return self.ask("initialize_share_group_state", 0, **named)

    def read(self, leader_epoch: int, **fields: Any) -> Any:
        """Send ReadShareGroupState."""
        return self.ask("read_share_group_state", 0, leader_epoch=leader_epoch, **fields)

    def write(
        self,
        version: int,
        epochs: tuple[int, int],
        start_offset: int,
        *batches: tuple[int, int, int, int],
        **fields: Any,
    ) -> Any:
        """Send WriteShareGroupState as a leader of these state and leader epochs."""
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        named = {
            "state_epoch": epochs[0],
            "leader_epoch": epochs[1],
            "start_offset": start_offset,
            "state_batches": [dict(zip(names, one, strict=True)) for one in batches],
            **fields,
        }
        return self.ask("write_share_group_state", version, **named)

    def summary(self, version: int = 1, **fields: Any) -> Any:
        """Send ReadShareGroupStateSummary."""
        return self.ask("read_share_group_state_summary", version, leader_epoch=-1, **fields)


@share_script("initialize_share_group_state")
def states_are_made(broker: Broker, version: int) -> None:
    states = States(broker, "state-made")
    for state_epoch, start_offset in ((3, 5), (3, 7), (2, 9), (4, -1)):
        states.initialize(state_epoch, start_offset)
        states.summary()
        states.read(0)
    states.initialize(1, 1, topic_id=UNKNOWN_ID)
    states.initialize(1, 1, partition=7)


@share_script("read_share_group_state")
def states_are_read(broker: Broker, version: int) -> None:
    states = States(broker, "state-read")
    states.read(0)
    states.initialize(1, 0)
    for leader_epoch in (0, 2, 2, 1):
        states.read(leader_epoch)
    states.summary()
    states.write(1, (1, 1), 3)
    states.write(1, (1, 2), 3)
    states.read(1)
    states.read(3)
    states.read(0, topic_id=UNKNOWN_ID)
    states.read(0, partition=7)


@share_script("write_share_group_state")
def states_are_written(broker: Broker, version: int) -> None:
    states = States(broker, f"state-written{version}")
    states.write(version, (0, 0), 0)
    states.initialize(2, 0)
    states.read(1)
    states.write(version, (2, 1), 0, (0, 4, 0, 1), (7, 9, 2, 1), delivery_complete_count=3)
    states.read(1)
    states.write(version, (2, 1), 5, (5, 8, 0, 2), delivery_complete_count=1)
    states.read(1)
    states.summary()
    states.write(version, (1, 1), 9)
    states.write(version, (2, 0), 9)
    states.write(version, (3, 2), -1, (6, 6, 4, 3))
    states.read(2)
    states.write(version, (2, 2), 0, topic_id=UNKNOWN_ID)
    states.write(version, (2, 2), 0, partition=7)


@share_script("delete_share_group_state")
def states_are_deleted(broker: Broker, version: int) -> None:
    states = States(broker, "state-deleted")
    states.ask("delete_share_group_state", 0)
    states.initialize(1, 5)
    states.ask("delete_share_group_state", 0)
    states.read(0)
    states.summary()
    states.initialize(0, 2)
    states.read(0)
    states.ask("delete_share_group_state", 0, topic_id=UNKNOWN_ID)


@share_script("read_share_group_state_summary")
def summaries_are_read(broker: Broker, version: int) -> None:
    states = States(broker, f"state-summary{version}")
    states.summary(version)
    states.initialize(4, 6)
    states.summary(version)
    states.read(2)
    states.summary(version)
    states.write(1, (4, 2), 8, (9, 9, 2, 1), delivery_complete_count=1)
    states.summary(version)
    states.summary(version, topic_id=UNKNOWN_ID)
    states.summary(version, partition=7)
