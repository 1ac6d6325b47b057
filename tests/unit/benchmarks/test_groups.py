"""Settings of the benchmark of groups."""

from __future__ import annotations

from benchmarks.groups import KAFKA_SETTINGS, SETTINGS


def test_both_brokers_have_as_many_partitions_in_each_internal_topic() -> None:
    counts = {key for key in {**SETTINGS, **KAFKA_SETTINGS} if key.endswith(".num.partitions")}
    assert counts == {
        "offsets.topic.num.partitions", "transaction.state.log.num.partitions",
        "share.coordinator.state.topic.num.partitions",
    }  # fmt: skip
    assert counts <= SETTINGS.keys()
