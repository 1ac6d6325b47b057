"""The results of a cluster of three Tidelog brokers beside those of three Kafka brokers, as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster import table
from benchmarks.cluster_rows import LogGrowth

NAME = "acks=all, 1,000 B, 64 KB batches: user CPU s/GB"


@pytest.mark.parametrize("order", [("tidelog", "kafka"), ("kafka", "tidelog")])
def test_tidelog_is_judged_by_kafka_in_whichever_order_they_ran(order: tuple[str, str]) -> None:
    figures = {"tidelog": 5.0, "kafka": 10.0}
    *_, line = table({kind: {NAME: figures[kind]} for kind in order})
    assert line == f"| {NAME} | 5.00 | 10.00 | 0.50 | <= 0.6x | yes |"


def test_growth_begins_with_the_first_new_byte(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(b"a" * 10)
    growth = LogGrowth(tmp_path)
    for now, size in ((100.0, 10), (110.0, 10), (111.0, 20), (112.0, 20), (113.0, 30), (150.0, 30)):
        log.write_bytes(b"a" * size)
        growth.look(now)
    assert (growth.grown_bytes, growth.seconds) == (20, 3.0)
