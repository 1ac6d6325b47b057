"""kill -9 under load: no acknowledged record is lost, and no offset has two records."""

from __future__ import annotations

import threading

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.readers import read_with_confluent
from tests.support.real_text import Line, real_lines
from tests.support.writers import Settings, Writer, record_of

TOPIC = "killed"
PARTITIONS = 3
LINES = 40_000
KILLS = 3
SETTINGS: Settings = {
    "linger.ms": 1,
    "batch.size": 20_000,
    "compression.type": "lz4",
    "message.timeout.ms": 120_000,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
}


def send_while_killed(broker: BrokerProcess, lines: tuple[Line, ...], writer: Writer) -> None:
    """Send all lines; the broker is killed and started again `KILLS` times on the way, with requests in flight."""
    share = len(lines) // (KILLS + 1)
    for number in range(KILLS + 1):
        for line in lines[number * share : (number + 1) * share]:
            writer.send(record_of(line))
        if number == KILLS:
            break
        killer = threading.Timer(0.01, broker.kill)
        killer.start()
        while killer.is_alive():
            writer.poll(0.001)
        killer.join()
        broker.start()
    writer.flush()


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_acknowledged_records_survive_kill(fresh_broker: BrokerProcess, idempotent: bool) -> None:
    lines = real_lines(LINES)
    Admin(fresh_broker.bootstrap).create(TOPIC, PARTITIONS)
    writer = Writer(fresh_broker.bootstrap, TOPIC, {**SETTINGS, "enable.idempotence": idempotent})
    send_while_killed(fresh_broker, lines, writer)
    acknowledged = writer.acknowledged
    assert not acknowledged.failures
    assert len(acknowledged.records) == LINES

    admin = Admin(fresh_broker.bootstrap)
    ends = {partition: admin.offset(TOPIC, partition, "latest") for partition in range(PARTITIONS)}
    found = read_with_confluent(fresh_broker.bootstrap, TOPIC, ends)
    assert len(found) == sum(ends.values()), "there is a gap in the offsets"
    assert {place: found[place] for place in acknowledged.records} == acknowledged.records
    if idempotent:
        assert len(found) == LINES, "a retry was appended twice"
