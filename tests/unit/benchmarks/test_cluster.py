"""The results of a cluster of three Tidelog brokers beside those of three Kafka brokers, as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster import BARS_OF_MANY, table
from benchmarks.cluster_rows import LogGrowth

NAME = "acks=all, 1,000 B, 64 KB batches: user CPU s/GB"


@pytest.mark.parametrize("order", [("tidelog", "kafka"), ("kafka", "tidelog")])
def test_tidelog_is_judged_by_kafka_in_whichever_order_they_ran(order: tuple[str, str]) -> None:
    figures = {"tidelog": 5.0, "kafka": 10.0}
    *_, line = table({kind: {NAME: figures[kind]} for kind in order})
    assert line == f"| {NAME} | 5.00 | 10.00 | 0.50 | <= 0.6x | yes |"


@pytest.mark.parametrize(("partitions", "is_judged"), [(1000, True), (50, False), (5000, False)])
def test_rows_of_many_partitions_are_judged_together_and_only_for_the_number_of_the_bars(
    partitions: int, *, is_judged: bool
) -> None:
    """With another number the bar of the first row was missing without a word, and the rows below it were judged."""
    names = [f"{partitions:,} partitions, idle: % of a core per broker", *list(BARS_OF_MANY)[1:]]
    lines = table({kind: dict.fromkeys(names, 0.1) for kind in ("tidelog", "kafka")})
    judged = [line for line in lines if line.endswith("| yes |")]
    assert len(judged) == (len(BARS_OF_MANY) if is_judged else 0)
    assert any("The bars for 1,000 partitions are left out" in line for line in lines) != is_judged


def test_growth_begins_with_the_first_new_byte(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(b"a" * 10)
    growth = LogGrowth(tmp_path)
    for now, size in ((100.0, 10), (110.0, 10), (111.0, 20), (112.0, 20), (113.0, 30), (150.0, 30)):
        log.write_bytes(b"a" * size)
        growth.look(now)
    assert (growth.grown_bytes, growth.seconds) == (20, 3.0)
