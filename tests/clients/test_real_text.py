"""Real text through librdkafka in every codec, read back by four clients byte for byte, and again after a restart."""

from __future__ import annotations

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.readers import READERS, read_with_confluent
from tests.support.real_text import LINES, real_lines
from tests.support.writers import CODECS, Acknowledged, Settings, write_lines

TOPIC = "real-text"
PARTITIONS = 3


@pytest.fixture(scope="module")
def loaded(broker: BrokerProcess) -> Acknowledged:
    """All lines, a fifth in each codec."""
    Admin(broker.bootstrap).create(TOPIC, PARTITIONS)
    lines, written = real_lines(), Acknowledged()
    share = len(lines) // len(CODECS)
    for number, codec in enumerate(CODECS):
        part = lines[number * share : (number + 1) * share]
        settings: Settings = {"compression.type": codec, "linger.ms": 5, "enable.idempotence": number % 2 == 0}
        written.records.update(write_lines(broker.bootstrap, TOPIC, part, settings).records)
    return written


def test_every_line_has_its_own_offset(loaded: Acknowledged) -> None:
    assert len(loaded.records) == LINES
    assert sum(loaded.ends().values()) == LINES


@pytest.mark.parametrize("client", READERS)
def test_client_reads_back_equal_bytes(broker: BrokerProcess, loaded: Acknowledged, client: str) -> None:
    assert READERS[client](broker.bootstrap, TOPIC, loaded.ends()) == loaded.records


@pytest.mark.parametrize("codec", CODECS)
def test_text_survives_a_restart(fresh_broker: BrokerProcess, codec: str) -> None:
    Admin(fresh_broker.bootstrap).create(TOPIC, PARTITIONS)
    lines = real_lines()[:10_000]
    written = write_lines(fresh_broker.bootstrap, TOPIC, lines, {"compression.type": codec})
    fresh_broker.restart()
    assert read_with_confluent(fresh_broker.bootstrap, TOPIC, written.ends()) == written.records
