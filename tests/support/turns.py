"""The broker's own turn clock, read over HTTP: how long the longest turn of its loop was."""

from __future__ import annotations

import urllib.request

from tests.support.broker import TidelogProcess
from tests.support.prometheus import Page, parse
from tidelog.commands.running.compaction import admin_address


def metrics_of(broker: TidelogProcess) -> Page:
    """The page of ``/metrics``."""
    host, port = admin_address(broker.bootstrap)
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as response:
        return parse(response.read().decode())


def longest_turn_cpu_s(broker: TidelogProcess) -> float:
    """CPU seconds of the longest turn since this was called last, or ``/metrics`` was read otherwise."""
    return metrics_of(broker).value("tidelog_loop_longest_turn_since_read_cpu_seconds")
