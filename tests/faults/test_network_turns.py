"""No request may hold the loop unnoticed: the turn clock of a real broker, read over ``/metrics``."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.turns import longest_turn_cpu_s, metrics_of


def metadata_of(names: int) -> bytes:
    """Encode a Metadata v1 that names so many topics of which there is none."""
    body = struct.pack(">i", names) + b"".join(struct.pack(">h10s", 10, b"%010d" % name) for name in range(names))
    return raw_client.frame(3, 1, 1, body)


def test_a_long_turn_is_told_once_by_metrics(tmp_path: Path) -> None:
    overrides = {"auto.create.topics.enable": "false"}
    with TidelogProcess(tmp_path, overrides) as broker, raw_client.connect(broker.port) as connection:
        for names in (1, 1000):
            connection.sendall(metadata_of(names))
            raw_client.receive_frame(connection)
            longest_turn_cpu_s(broker)
        assert longest_turn_cpu_s(broker) >= 0
        connection.sendall(metadata_of(20_000))
        raw_client.receive_frame(connection)
        longest = longest_turn_cpu_s(broker)
        assert longest > 0
        page = metrics_of(broker)
        assert page.value("tidelog_loop_longest_turn_cpu_seconds") >= longest
        assert page.value("tidelog_loop_longest_turn_seconds") > 0
