"""Hostile produce and fetch requests beside a bystander, a client that produces: no long turn, bounded memory, and all
of the bystander's records are there.

The broker measures its turns in CPU time (``/metrics``), so that other work of the machine counts little.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.hostile_data import PARTITIONS, ROWS, TIMESTAMP_MS, HostileRequest, fetch, old_set, produce
from benchmarks.procfs import rss_bytes
from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.bystander import Bystander
from tests.support.turns import longest_turn_cpu_s
from tidelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

LONGEST_TURN_CPU_S = 0.02
#: CPU time varies with what else uses the caches: a row that takes longer has to keep the limit the second time.
TRIES = 2
MAX_GROWTH_BYTES = 256 << 20
WAIT_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    """One broker that has handled every codec and old format: it imports their libraries once, on its loop."""
    with TidelogProcess(tmp_path_factory.mktemp("bystander")) as broker:
        create(broker, "warm", {})
        for codec in CompressionType:
            records = [Record(number, TIMESTAMP_MS, None, b"v" * 100) for number in range(50)]
            ask(broker, produce("warm", (0, build_batch(records, BatchOptions(compression=codec)))))
        ask(broker, produce("warm", (1, old_set(3, 1)), version=2))
        ask(broker, fetch("warm", 2))
        yield broker


def ask(broker: TidelogProcess, frame: bytes) -> bytes | None:
    """Return the response without its correlation id; None where the broker closes the connection."""
    with raw_client.connect(broker.port) as connection:
        connection.settimeout(WAIT_S)
        try:
            connection.sendall(frame)
            return raw_client.receive_frame(connection)[4:]
        except (EOFError, ConnectionError):
            return None


def create(broker: TidelogProcess, topic: str, configs: dict[str, str]) -> None:
    asked = CreatableTopic(
        name=topic,
        num_partitions=PARTITIONS,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[asked], timeout_ms=60_000)
    assert ask(broker, raw_client.frame(19, 4, 1, request.encode(4))) is not None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_producer_is_served_beside_each_hostile_request(broker: TidelogProcess, row: HostileRequest) -> None:
    topic = f"t{ROWS.index(row)}"
    create(broker, topic, dict(row.configs))
    create(broker, topic + "-bystander", {})
    for frame in row.prepare(topic):
        assert ask(broker, frame) is not None
    frame = row.frame(topic)
    with Bystander(broker.port, topic + "-bystander") as bystander:
        bystander.wait_for(3)
        before = rss_bytes(broker.pid)
        turns: list[float] = []
        while len(turns) < TRIES and (not turns or turns[-1] > LONGEST_TURN_CPU_S):
            longest_turn_cpu_s(broker)
            ask(broker, frame)
            bystander.wait_for(3)
            turns.append(longest_turn_cpu_s(broker))
        grown = rss_bytes(broker.pid) - before
    assert bystander.end_offset() == bystander.acknowledged
    assert min(turns) <= LONGEST_TURN_CPU_S, turns
    assert grown <= MAX_GROWTH_BYTES
