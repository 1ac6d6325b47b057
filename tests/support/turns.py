"""Metrics of a broker, read over HTTP, and the metric for the CPU time of the longest turn of its event loop."""

from __future__ import annotations

import urllib.request

from benchmarks.bystander import LONGEST_TURN
from tests.support.broker import TidelogProcess
from tests.support.prometheus import Page, parse
from tidelog.commands.running.compaction import admin_address


def metrics_of(broker: TidelogProcess) -> Page:
    """Read and parse the page ``/metrics``."""
    return parse(_text(broker))


def longest_turn_cpu_s(broker: TidelogProcess) -> float:
    """Read the CPU seconds of the event loop's longest turn since any client last read ``/metrics``.

    The page is searched, not parsed: with 10,000 partitions, parsing takes longer than most requests.
    """
    found = LONGEST_TURN.search(_text(broker))
    assert found is not None
    return float(found[1])


def _text(broker: TidelogProcess) -> str:
    host, port = admin_address(broker.bootstrap)
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as response:
        text: str = response.read().decode()
    return text
