"""Scripts about transactions: from InitProducerId to WriteTxnMarkers, and the APIs that describe transactions."""

from __future__ import annotations

import time
from typing import Any

from tests.support.questions import Broker
from tests.support.scripts.groups import join_stable_group
from tests.support.scripts.registry import WAIT_S, batch, create, script, until_error

TIMEOUT_MS = 60_000


def begun(broker: Broker, transactional_id: str) -> Any:
    """Initialize a producer after its last transaction has ended, and return the response of InitProducerId."""
    asked = {"transactional_id": transactional_id, "transaction_timeout_ms": TIMEOUT_MS}
    until_error(broker, 0, "init_producer_id", 4, **asked)
    return broker.ask_quietly("init_producer_id", 4, **asked)


def state(broker: Broker, transactional_id: str) -> str:
    """Return the state of a transaction, as DescribeTransactions names it."""
    described = broker.ask_quietly("describe_transactions", 0, transactional_ids=[transactional_id])
    return str(described.transaction_states[0].transaction_state)


def add(broker: Broker, transactional_id: str, producer: Any, *topics: str) -> None:
    """Add partition 0 of each topic to the transaction."""
    fields = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": producer.producer_epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": [0]} for topic in topics],
    }
    response = broker.ask_quietly("add_partitions_to_txn", 3, **fields)
    for topic in response.results_by_topic_v3_and_below:
        assert topic.results_by_partition[0].partition_error_code == 0, response


@script("init_producer_id")
def init_producer_id(broker: Broker, version: int) -> None:
    name = f"ip{version}"

    def init(transactional_id: str | None = name, **other: object) -> Any:
        fields = {"transactional_id": transactional_id, "transaction_timeout_ms": TIMEOUT_MS, **other}
        return broker.ask("init_producer_id", version, **fields)

    init(None)
    init("")
    for timeout_ms in (0, -1, 900_001):
        init(transaction_timeout_ms=timeout_ms)
    producer = init()
    init()
    if version >= 3:
        mine = {"producer_id": producer.producer_id}
        init(**mine, producer_epoch=1)
        init(**mine, producer_epoch=1)
        init(**mine, producer_epoch=0)
        init(**mine, producer_epoch=9)
        init(producer_id=producer.producer_id + 1000, producer_epoch=0)
        init(**mine)
        init(producer_epoch=1)
        init(f"{name}-new", producer_id=77, producer_epoch=0)
        init(None, producer_id=77, producer_epoch=0)
    if version >= 6:
        init(f"{name}-2pc", enable2_pc=True)
        init(f"{name}-2pc", keep_prepared_txn=True)


@script("add_partitions_to_txn")
def add_partitions_to_txn(broker: Broker, version: int) -> None:
    name = f"ap{version}"
    create(broker, name, 2)
    producer = begun(broker, name)

    def ask(transactional_id: str = name, topic: str = name, partition: int = 0, **other: int) -> None:
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, **other}
        topics = [{"name": topic, "partitions": [partition]}]
        if version >= 4:
            transaction = {"transactional_id": transactional_id, **identity, "topics": topics}
            broker.ask("add_partitions_to_txn", version, transactions=[transaction])
            return
        fields = {f"v3_and_below_{key}": value for key, value in identity.items()}
        fields |= {"v3_and_below_transactional_id": transactional_id, "v3_and_below_topics": topics}
        broker.ask("add_partitions_to_txn", version, **fields)

    ask()
    ask()
    ask(partition=1)
    ask(partition=2)
    ask(topic=f"{name}-none")
    ask(f"{name}-none")
    ask("")
    ask(producer_id=producer.producer_id + 1000)
    ask(producer_epoch=9)
    if version >= 4:
        for topic in (name, f"{name}-none"):
            asked = {
                "transactional_id": name,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "verify_only": True,
                "topics": [{"name": topic, "partitions": [0, 1]}],
            }
            broker.ask("add_partitions_to_txn", version, transactions=[asked])
    broker.ask("describe_transactions", 0, transactional_ids=[name])


@script("add_offsets_to_txn")
def add_offsets_to_txn(broker: Broker, version: int) -> None:
    name = f"ao{version}"
    producer = begun(broker, name)

    def ask(**other: object) -> None:
        fields = {
            "transactional_id": name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "group_id": name,
            **other,
        }
        broker.ask("add_offsets_to_txn", version, **fields)

    ask()
    ask()
    ask(group_id="")
    ask(transactional_id="")
    ask(transactional_id=f"{name}-none")
    ask(producer_id=producer.producer_id + 1000)
    ask(producer_epoch=9)


@script("txn_offset_commit")
def txn_offset_commit(broker: Broker, version: int) -> None:
    name = f"tc{version}"
    create(broker, name, 2)
    member = join_stable_group(broker, f"{name}-member", name)
    producer = begun(broker, name)
    for group in (name, f"{name}-member"):
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        broker.ask_quietly("add_offsets_to_txn", 3, transactional_id=name, group_id=group, **identity)

    def commit(topic: str = name, partition: int = 0, metadata: str | None = "m", **other: object) -> None:
        placed = [{"partition_index": partition, "committed_offset": 4, "committed_metadata": metadata}]
        fields = {
            "transactional_id": name,
            "group_id": name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "generation_id": -1,
            "topics": [{"name": topic, "partitions": placed}],
            **other,
        }
        broker.ask("txn_offset_commit", version, **fields)

    commit()
    commit(partition=2)
    commit(f"{name}-none")
    commit(metadata="x" * 4097)
    commit(group_id="")
    commit(producer_id=producer.producer_id + 1000)
    commit(producer_epoch=9)
    if version >= 3:
        commit(generation_id=3, member_id="m")
        commit(group_id=f"{name}-member", generation_id=member.generation_id, member_id=member.member_id)
        commit(group_id=f"{name}-member", generation_id=9, member_id=member.member_id)
        commit(group_id=f"{name}-member", generation_id=member.generation_id, member_id="unknown")
        commit(group_id=f"{name}-member")
    for stable in (False, True):
        topics = [{"name": name, "partition_indexes": [0, 1]}]
        broker.ask("offset_fetch", 7, group_id=name, topics=topics, require_stable=stable)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    broker.ask("end_txn", 3, transactional_id=name, **identity, committed=True)
    begun(broker, name)
    broker.ask("offset_fetch", 7, group_id=name, topics=None, require_stable=True)


@script("end_txn")
def end_txn(broker: Broker, version: int) -> None:
    name = f"et{version}"
    create(broker, name)
    producer = begun(broker, name)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}

    def end(**other: object) -> Any:
        return broker.ask("end_txn", version, **{"transactional_id": name, **identity, "committed": True, **other})

    def until_over() -> None:
        begun_or_over = {"CompleteCommit", "CompleteAbort", "Empty"}
        deadline = time.monotonic() + WAIT_S
        while state(broker, name) not in begun_or_over:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    if version < 5:
        end()
        end(committed=False)
    for commit in (True, False):
        add(broker, name, producer, name)
        inside = batch(
            b"t", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0,
            is_transactional=True,
        )  # fmt: skip
        topics = [{"name": name, "partition_data": [{"index": 0, "records": inside}]}]
        broker.ask("produce", 9, acks=-1, timeout_ms=5_000, transactional_id=name, topic_data=topics)
        for wrong in (
            {"transactional_id": ""},
            {"transactional_id": f"{name}-none"},
            {"producer_id": producer.producer_id + 1000},
            {"producer_epoch": 99},
        ):
            end(**wrong)
        end(committed=commit)
        until_over()
        end(committed=commit)
        until_over()
        end(committed=not commit)
        until_over()
        producer = begun(broker, name)
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    for level in (0, 1):
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": name, "partitions": [partition]}]
        broker.ask("fetch", 11, topics=topics, isolation_level=level, max_bytes=1 << 20, replica_id=-1)


@script("describe_transactions")
def describe_transactions(broker: Broker, version: int) -> None:
    name = f"dx{version}"
    create(broker, name, 2)
    producer = begun(broker, name)
    broker.ask("describe_transactions", version, transactional_ids=[name, f"{name}-none", ""])
    add(broker, name, producer, name)
    broker.ask("describe_transactions", version, transactional_ids=[name])
    broker.ask("describe_transactions", version, transactional_ids=[])


@script("list_transactions")
def list_transactions(broker: Broker, version: int) -> None:
    name = f"lt{version}"
    create(broker, name)
    producer = begun(broker, name)
    add(broker, f"{name}-open", begun(broker, f"{name}-open"), name)

    def listed(**filters: object) -> None:
        response = broker.ask_quietly("list_transactions", version, **filters)
        response.transaction_states = sorted(
            (found for found in response.transaction_states if found.transactional_id.startswith(name)),
            key=lambda found: str(found.transactional_id),
        )
        broker.answers.append((f"list_transactions v{version} {filters}", broker.plain(response)))

    listed()
    for states in (["Ongoing"], ["Empty"], ["ongoing"], ["NoSuch"], ["Ongoing", "NoSuch"]):
        listed(state_filters=states)
    listed(producer_id_filters=[producer.producer_id])
    listed(producer_id_filters=[424242])
    for duration in (-1, 0, 100_000):
        listed(duration_filter=duration)
    for pattern in (f"{name}.*", name, "lt", "", "(", ".*-open", "(?<=x)a"):
        listed(transactional_id_pattern=pattern)


@script("describe_producers")
def describe_producers(broker: Broker, version: int) -> None:
    name = f"dp{version}"
    create(broker, name, 2)
    producer = begun(broker, name)
    add(broker, name, producer, name)
    inside = batch(
        b"t", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    topics = [{"name": name, "partition_data": [{"index": 0, "records": inside}]}]
    broker.ask("produce", 9, acks=-1, timeout_ms=5_000, transactional_id=name, topic_data=topics)
    asked = [{"name": name, "partition_indexes": [0, 1, 2]}, {"name": f"{name}-none", "partition_indexes": [0]}]
    broker.ask("describe_producers", version, topics=asked)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    until_error(broker, 0, "end_txn", 3, transactional_id=name, **identity, committed=True)
    begun(broker, name)
    broker.ask("describe_producers", version, topics=asked[:1])


@script("write_txn_markers")
def write_txn_markers(broker: Broker, version: int) -> None:
    name = f"wm{version}"
    create(broker, name)
    for epoch, coordinator, result in ((0, 0, True), (0, 0, False), (1, 1, True), (0, 1, True), (1, 0, True)):
        topics = [{"name": name, "partition_indexes": [0, 1]}, {"name": f"{name}-none", "partition_indexes": [0]}]
        marker = {
            "producer_id": 4_000_000 + version,
            "producer_epoch": epoch,
            "transaction_result": result,
            "coordinator_epoch": coordinator,
            "topics": topics,
        }
        broker.ask("write_txn_markers", version, markers=[marker])
    broker.ask("write_txn_markers", version, markers=[])
