"""Every long turn of the loop is measured: the turn clock of a real broker, read over ``/metrics``."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.turns import longest_turn_cpu_s, metrics_of

BUSY_MS = 80
MAX_REQUESTS = 100
"""Requests of 8 s at least."""
READINGS = 5
"""Readings of the metrics, in at least one of which no other work of the broker took long."""
HOLD_THE_LOOP = f"""
import sys, time
from tidelog import cli
from tidelog.broker.handlers import list_groups

answer = list_groups.handle

def handle(*arguments):
    end = time.thread_time() + {BUSY_MS} / 1000
    while time.thread_time() < end:
        pass
    return answer(*arguments)

list_groups.handle = handle
sys.exit(cli.main())
"""


class BusyProcess(TidelogProcess):
    """A broker with a defect: each ListGroups takes BUSY_MS of CPU in one turn."""

    def command(self) -> list[str]:
        return [sys.executable, "-I", "-c", HOLD_THE_LOOP, *super().command()[4:]]


def test_a_handler_that_holds_the_loop_is_logged_and_counted(tmp_path: Path) -> None:
    """One line a second is logged: a slow turn of the start may have taken this second's."""
    with BusyProcess(tmp_path) as broker, raw_client.connect(broker.port) as connection:
        sent = 0
        while "LIST_GROUPS of 127.0.0.1" not in broker.output():
            assert sent < MAX_REQUESTS, broker.output()
            connection.sendall(raw_client.frame(16, 0, 1, b""))
            raw_client.receive_frame(connection)
            sent += 1
        page = metrics_of(broker)
        assert page.value("tidelog_loop_long_turns_total", what="LIST_GROUPS") == sent
        assert page.value("tidelog_loop_longest_turn_cpu_seconds") >= BUSY_MS / 1000
        (line,) = (line for line in broker.output().splitlines() if "LIST_GROUPS of 127.0.0.1" in line)
        assert "one turn of the loop took" in line


def metadata_of(names: int) -> bytes:
    """Encode a Metadata v1 that names so many topics of which there is none."""
    body = struct.pack(">i", names) + b"".join(struct.pack(">h10s", 10, b"%010d" % name) for name in range(names))
    return raw_client.frame(3, 1, 1, body)


def test_a_long_turn_is_in_one_reading_of_the_metrics(tmp_path: Path) -> None:
    overrides = {"auto.create.topics.enable": "false"}
    with TidelogProcess(tmp_path, overrides) as broker, raw_client.connect(broker.port) as connection:
        shortest = min(longest_turn_cpu_s(broker) for _ in range(READINGS))
        connection.sendall(metadata_of(20_000))
        raw_client.receive_frame(connection)
        longest = longest_turn_cpu_s(broker)
        assert longest > 2 * shortest
        assert min(longest_turn_cpu_s(broker) for _ in range(READINGS)) < longest / 2
        page = metrics_of(broker)
        assert page.value("tidelog_loop_longest_turn_cpu_seconds") >= longest
        assert page.value("tidelog_loop_longest_turn_seconds") > 0
