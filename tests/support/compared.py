"""The same requests to Tidelog and to Apache Kafka, and the differences between their responses.

The requests are in the scripts of ``tests/support/scripts``; ``tests/support/questions.py`` makes responses comparable
plain values. Each test has patterns of the deliberate differences. A pattern matches a text of request, field and both
values.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.questions import Broker
from tests.support.scripts import groups
from tests.support.scripts.registry import Entry, create

OVERRIDES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
AT_ONCE = {"group.consumer.assignment.interval.ms": "0", "group.consumer.min.assignment.interval.ms": "0"}
"""Settings with which Kafka 4.3 computes an assignment at the heartbeat that causes it, as Tidelog does; by default
Kafka waits up to a second for further changes."""
WAIT_S = 60.0


@contextmanager
def two_brokers(directory: Path, kafkas: Mapping[str, str], both: Mapping[str, str]) -> Iterator[tuple[Broker, Broker]]:
    """Tidelog and Apache Kafka, ready for requests; ``kafkas`` are settings of Kafka alone, ``both`` of both."""
    kafka = ApacheKafka(directory / "kafka", {**OVERRIDES, **AT_ONCE, **both, **kafkas}, in_shared_jvm=True)
    with kafka as theirs, TidelogProcess(directory / "tidelog", {**OVERRIDES, **both}) as ours:
        pair = Broker(ours.bootstrap), Broker(theirs.bootstrap)
        for broker in pair:
            until_ready(broker)
        yield pair
        for broker in pair:
            broker.close()


def until_ready(broker: Broker) -> None:
    """Wait until group and transaction coordinator answer: the first requests to them create their internal topics."""
    for kind in (0, 1):
        until_answered(broker, "find_coordinator", 3, key="ready", key_type=kind)
    for transactional_id in ("ready", None):
        asked = {"transactional_id": transactional_id, "transaction_timeout_ms": 1000}
        until_answered(broker, "init_producer_id", 3, **asked)
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    commit = {"group_id": "ready", "topics": [{"name": "none", "partitions": [partition]}]}
    until_answered(broker, "offset_fetch", 5, group_id="ready", topics=None)
    broker.ask_quietly("offset_commit", 8, generation_id_or_member_epoch=-1, **commit)
    create(broker, "ready")
    groups.committed(broker, "ready", "ready")


def until_answered(broker: Broker, api: str, version: int, **fields: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while broker.ask_quietly(api, version, **fields).error_code:
        assert time.monotonic() < deadline, api
        time.sleep(0.02)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Yield the field and both values for each difference. Error messages are not compared."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours:
            yield from differences(ours[key], theirs.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(our, their, f"{path}[{index}]")
    elif ours != theirs and not path.endswith("error_message"):
        yield f"{path} {ours} {theirs}"


def collect_differences(
    brokers: tuple[Broker, Broker],
    entry: Entry,
    versions: Iterable[int],
    seen_as: Callable[[Any], Any] = lambda answer: answer,
) -> list[str]:
    """Run a script at both brokers in these versions, and collect the differences between the responses.

    ``seen_as`` turns each response into the part that is compared.
    """
    found = []
    for version in versions:
        for broker in brokers:
            broker.begin()
            entry.run(broker, version)
        ours, theirs = (broker.answers for broker in brokers)
        assert len(ours) == len(theirs)
        for (question, our), (_, their) in zip(ours, theirs, strict=True):
            found += [f"{question} {difference}" for difference in differences(seen_as(our), seen_as(their))]
    return found


def unexpected_differences(found: Iterable[str], deliberate: Iterable[str]) -> list[str]:
    """Select the differences that no pattern matches from its start."""
    return [difference for difference in found if not any(re.match(pattern, difference) for pattern in deliberate)]
