"""franz-go, sarama and kafkajs: each writes real text in the codecs it knows, and reads it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.old_clients import run_go_client, run_node_client
from tests.support.readers import read_with_confluent
from tests.support.real_text import real_lines
from tests.support.writers import CODECS

VALUES = [line.text for line in real_lines()[:500]]
Run = Callable[[dict[str, str | int], Iterable[bytes]], list[bytes]]
CLIENTS: dict[str, tuple[Run, tuple[str, ...]]] = {
    "franz-go": (partial(run_go_client, "franz"), CODECS),
    "sarama": (partial(run_go_client, "sarama"), CODECS),
    "kafkajs": (run_node_client, ("none", "gzip")),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_client_writes_and_reads(broker: BrokerProcess, client: str) -> None:
    run, codecs = CLIENTS[client]
    Admin(broker.bootstrap).create(client)
    options: dict[str, str | int] = {"bootstrap": broker.bootstrap, "topic": client}
    for codec in codecs:
        run({**options, "mode": "produce", "codec": codec}, VALUES)
    count = len(codecs) * len(VALUES)
    found = read_with_confluent(broker.bootstrap, client, {0: count})
    assert [found[0, offset].value for offset in range(count)] == len(codecs) * VALUES
    assert run({**options, "mode": "consume", "count": count}, ()) == len(codecs) * VALUES


def test_kafkajs_writes_idempotently(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("kafkajs-idempotent")
    options: dict[str, str | int] = {"bootstrap": broker.bootstrap, "topic": "kafkajs-idempotent", "mode": "produce"}
    for _ in range(2):
        run_node_client({**options, "codec": "none", "idempotent": 1}, VALUES)
    found = read_with_confluent(broker.bootstrap, "kafkajs-idempotent", {0: 2 * len(VALUES)})
    assert [found[0, offset].value for offset in range(2 * len(VALUES))] == 2 * VALUES
