"""Samples of ``/metrics`` beyond the broker's own counters and gauges, and the Prometheus text.

Names follow Kafka's MBeans in lower case with underscores (``kafka.log:type=Log,name=Size`` is ``kafka_log_log_size``).
Values that belong to the loop thread are taken there (``snapshot``); logs and cleaner are read in a worker
(``rest``), without locks: ten thousand partitions must not stop the loop.
"""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.metrics.registry import Sample
from tidelog.cleaner.cleaner_manager import PartitionStatus
from tidelog.log.records.engine import IS_COMPILED
from tidelog.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica.partition import Partition
    from tidelog.broker.requests.route import Route
    from tidelog.cleaner.log_cleaner import LogCleaner


class Snapshot(NamedTuple):
    """Values that were taken on the loop thread."""

    samples: list[Sample]
    shared: Iterable[Sample]
    """Values for any thread; asked for one by one."""
    partitions: list[Partition]


def snapshot(broker: Broker) -> Snapshot:
    """Counters, gauges, coordinators and the list of partitions. Loop thread."""
    samples = [*broker.metrics.collect(), *coordinator_samples(broker)]
    return Snapshot(samples, broker.metrics.collect_shared(), list(broker.replica_manager.known_partitions()))


def rest(taken: Snapshot, cleaner: LogCleaner) -> str:
    """The page: ``taken``, and what may be read by any thread."""
    samples = [*taken.samples, *taken.shared, *process_samples(), *topic_samples(taken.partitions)]
    samples += [*log_samples(taken.partitions), *cleaner_samples(cleaner), *partition_samples(cleaner.status())]
    return render(samples)


def request_samples(routes: Iterable[Route]) -> Iterator[Sample]:
    """Requests by API and version, of those that came."""
    for route in routes:
        name = "".join(word.capitalize() for word in ApiKey(route.api_key).name.split("_"))
        labels = {"request": name, "version": str(route.api_version)}
        yield Sample("kafka_network_requestmetrics_requests_total", "counter", labels, route.requests)


def topic_samples(partitions: Iterable[Partition]) -> Iterator[Sample]:
    """Bytes produced, by topic, of the topics that are there. Any thread: 10,000 partitions take 15 ms."""
    totals: dict[str, int] = {}
    for partition in partitions:
        topic = partition.topic_partition.topic
        totals[topic] = totals.get(topic, 0) + partition.bytes_in
    for topic, total in totals.items():
        yield Sample("kafka_server_topicmetrics_bytesin_total", "counter", {"topic": topic}, total)


def coordinator_samples(broker: Broker) -> Iterator[Sample]:
    """Groups and transactional ids of the shards that are loaded. Asking loads none."""
    coordinators = broker.services.coordinators.made
    if coordinators is None:
        return
    groups, transactions = coordinators.made_groups, coordinators.made_transactions
    if groups is not None:
        count = sum(len(shard.groups) for _, shard in groups.runtime.loaded)
        yield Sample("kafka_coordinator_group_groupmetadatamanager_numgroups", "gauge", {}, count)
    if transactions is not None:
        count = sum(len(shard.transactions) for _, shard in transactions.runtime.loaded)
        yield Sample("kafka_coordinator_transaction_transactionalids", "gauge", {}, count)


def log_samples(partitions: Iterable[Partition]) -> Iterator[Sample]:
    """Sizes and offsets of the logs that something has touched since the start: the others are not opened for it."""
    for partition in partitions:
        metrics = partition.log_metrics()
        if metrics is None:
            continue
        labels = {"topic": partition.topic_partition.topic, "partition": str(partition.topic_partition.partition)}
        for name, value in metrics._asdict().items():
            yield Sample(f"kafka_log_log_{name}", "gauge", labels, value)


def process_samples() -> Iterator[Sample]:
    """Memory and processor time of this process, under the names every Prometheus client uses, and how it was built."""
    yield Sample("tidelog_build_info", "gauge", {"compiled": "yes" if IS_COMPILED else "no"}, 1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Sample("process_cpu_seconds_total", "counter", {}, used.ru_utime + used.ru_stime)
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
    except OSError:  # no /proc here
        return
    yield Sample("process_resident_memory_bytes", "gauge", {}, pages * os.sysconf("SC_PAGE_SIZE"))
    yield Sample("process_open_fds", "gauge", {}, descriptors)


def cleaner_samples(cleaner: LogCleaner) -> Iterable[Sample]:
    """Return work and state of all cleaner threads; names follow Kafka's MBeans."""
    counters, manager = cleaner.counters, cleaner.manager
    for field in dataclasses.fields(counters):
        yield Sample(f"kafka_log_logcleaner_{field.name}_total", "counter", {}, getattr(counters, field.name))
    yield Sample("kafka_log_logcleaner_live_threads", "gauge", {}, cleaner.live_threads)
    yield Sample("kafka_log_logcleanermanager_max_dirty_percent", "gauge", {}, 100 * manager.dirtiest_ratio)
    delay_s = manager.max_compaction_delay_ms / 1000
    yield Sample("kafka_log_logcleaner_max_compaction_delay_secs", "gauge", {}, delay_s)


def partition_samples(statuses: Iterable[PartitionStatus]) -> Iterable[Sample]:
    """The state of every compacted partition."""
    for status in statuses:
        labels = {"topic": status.topic_partition.topic, "partition": str(status.topic_partition.partition)}
        values: dict[str, float] = {
            "cleanable_ratio": status.cleanable_ratio,
            "dirty_bytes": status.dirty_bytes,
            "first_dirty_offset": status.first_dirty_offset,
            "compaction_lag_ms": status.compaction_lag_ms,
            "quarantined": status.state.value == "quarantined",
            "failures": status.failures,
        }
        if status.last_round is not None:
            values |= {
                "last_round_timestamp_ms": status.last_round.finished_ms,
                "last_round_duration_ms": status.last_round.duration_ms,
                "last_round_bytes_before": status.last_round.bytes_before,
                "last_round_bytes_after": status.last_round.bytes_after,
                "last_round_records_before": status.last_round.records_before,
                "last_round_records_after": status.last_round.records_after,
                "map_utilization": status.last_round.map_utilization,
                "collision_rate": status.last_round.collision_rate,
                "unreadable_batches": status.last_round.unreadable_batches,
            }
        for name, value in values.items():
            yield Sample(f"kafka_log_logcleaner_partition_{name}", "gauge", labels, float(value))


def render(samples: Iterable[Sample]) -> str:
    """Prometheus text: the samples of one family stand together, below its type."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(_family(sample), []).append(sample)
    lines = []
    for family, members in families.items():
        kind = members[0].kind
        lines.append(f"# TYPE {family} {'summary' if kind == 'histogram' else kind}")
        lines += [f"{sample.name}{_labels(sample)} {_number(sample.value)}" for sample in members]
    return "\n".join(lines) + "\n"


def _family(sample: Sample) -> str:
    """Count and sum of a histogram belong to its quantiles."""
    return sample.name.removesuffix("_count").removesuffix("_sum") if sample.kind == "histogram" else sample.name


def _labels(sample: Sample) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in sample.labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
