"""kill -9 between the steps of a transaction's end: decision, markers, completion (fault F20 of
docs/internals/faults.md). Each transaction is complete or absent.

The broker is killed at times drawn from a seed, aimed at the moment a commit or an abort is under way, and started
again. Each transaction writes its number into every partition. Afterwards read_committed must show each number in all
partitions or in none; in all for a commit that was acknowledged, in none for an abort that was; and nothing may be
left open.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess

TOPIC = "split"
PARTITIONS = 20
TRANSACTIONS = 40
KILLS = 8
LONGEST_WAIT_S = 0.004
"""A commit over twenty partitions takes about this long: the kill falls anywhere within it."""
TIMEOUT_S = 60.0
KILLED_TIMEOUT_S = 2.0


def producer_of(broker: TidelogProcess) -> Producer:
    """Start the producer again: a transaction that the last one left open is aborted."""
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "split", "reconnect.backoff.max.ms": 100}
    producer = Producer({**settings, "linger.ms": 0, "log_level": 0, "transaction.timeout.ms": 60_000})
    producer.init_transactions(TIMEOUT_S)
    return producer


def end(broker: TidelogProcess, producer: Producer, *, commit: bool, kill_after_s: float | None) -> bool:
    """End the transaction, with or without a kill of the broker; return whether the end was acknowledged."""
    finish = producer.commit_transaction if commit else producer.abort_transaction
    killer = threading.Timer(kill_after_s or 0.0, broker.kill)
    if kill_after_s is not None:
        killer.start()
    try:
        finish(TIMEOUT_S if kill_after_s is None else KILLED_TIMEOUT_S)
    except KafkaException:
        return False
    finally:
        if kill_after_s is not None:
            killer.join()
            broker.start()
    return True


def committed_numbers(broker: TidelogProcess) -> Counter[int]:
    """Count how often each number is read, read_committed, up to the end of every partition."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: Counter[int] = Counter()
    ended: set[int | None] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "a transaction is left open"
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found[int(message.value() or b"")] += 1
    consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_transaction_is_whole_or_not_there(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    killed = set(chance.sample(range(TRANSACTIONS), KILLS))
    acknowledged: dict[int, bool] = {}
    with TidelogProcess(tmp_path_factory.mktemp("split")) as broker:
        Admin(broker.bootstrap).create(TOPIC, PARTITIONS)
        producer = producer_of(broker)
        for number in range(TRANSACTIONS):
            commit = chance.random() < 0.7
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"%d" % number, partition=partition)
            producer.flush(TIMEOUT_S)
            wait_s = chance.uniform(0, LONGEST_WAIT_S) if number in killed else None
            if end(broker, producer, commit=commit, kill_after_s=wait_s):
                acknowledged[number] = commit
            if wait_s is not None:
                producer = producer_of(broker)
        found = committed_numbers(broker)
    assert set(found.values()) <= {PARTITIONS}
    assert {number: number in found for number in acknowledged} == acknowledged
