"""The page ``/metrics`` as Prometheus text: samples of ``Metrics``, partitions, groups, the cleaner and the process.

Exported names, types and units are those of ``tidelog.broker.metrics.families``. Values that belong to the loop's
thread are read on that thread (``snapshot``); logs and cleaner are read in a worker (``write_page``): ten thousand
partitions must not hold up the loop.
"""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.metrics.families import FAMILIES, HISTOGRAM, Family
from tidelog.broker.metrics.registry import Sample
from tidelog.cleaner.cleaner_manager import PartitionStatus
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.records.engine import IS_COMPILED
from tidelog.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordinator.group.offsets import OffsetAndMetadata
    from tidelog.broker.replica.partition import Partition
    from tidelog.broker.requests.route import Route
    from tidelog.cleaner.log_cleaner import LogCleaner


MAX_COMMITS, MAX_LAGS = 2_000, 20_000
"""Limits of the lag samples: pairs of group and topic, and partitions in total. More would hold up the loop, and give
Prometheus too many time series."""


class Commits(NamedTuple):
    """The offsets that a group has committed for a topic, by partition.

    ``has_more`` is set for the last topic of a group of which further topics were left out.
    """

    group: str
    topic: str
    partitions: dict[int, OffsetAndMetadata]
    has_more: bool = False


class Snapshot(NamedTuple):
    """Values that were read on the loop's thread, and what a worker needs to read the others."""

    samples: list[Sample]
    shared: Iterable[Sample]
    """Iterator of samples, which any thread may consume."""
    partitions: list[Partition]
    commits: list[Commits]


def snapshot(broker: Broker, *, with_internal: bool = False) -> Snapshot:
    """Take counters, gauges, coordinators' samples and the list of partitions. Internal topics are included only if
    ``with_internal`` is True. Loop thread."""
    samples = [*broker.metrics.collect(), *coordinator_samples(broker)]
    known = broker.replica_manager.known_partitions()
    partitions = [partition for partition in known if with_internal or not partition.is_internal]
    return Snapshot(samples, broker.metrics.collect_shared(), partitions, group_commits(broker))


def write_page(taken: Snapshot, cleaner: LogCleaner) -> str:
    """Write the page: the samples of ``taken``, and those that any thread may read. Any thread."""
    samples = [*taken.samples, *taken.shared, *process_samples(), *topic_samples(taken.partitions)]
    samples += [*log_samples(taken.partitions), *lag_samples(taken.commits, taken.partitions)]
    samples += [*cleaner_samples(cleaner), *partition_samples(cleaner.status())]
    return render(samples)


def request_samples(routes: Iterable[Route]) -> Iterator[Sample]:
    """Yield the number of requests of each API and version that was used."""
    for route in routes:
        name = "".join(word.capitalize() for word in ApiKey(route.api_key).name.split("_"))
        labels = {"request": name, "version": str(route.api_version)}
        yield Sample("kafka_network_requestmetrics_requests_total", "counter", labels, route.requests)


def topic_samples(partitions: Iterable[Partition]) -> Iterator[Sample]:
    """Yield the bytes produced to each topic of these partitions. Any thread: 10,000 partitions take 15 ms."""
    totals: dict[str, int] = {}
    for partition in partitions:
        topic = partition.topic_partition.topic
        totals[topic] = totals.get(topic, 0) + partition.bytes_in
    for topic, total in totals.items():
        yield Sample("kafka_server_topicmetrics_bytesin_total", "counter", {"topic": topic}, total)


def coordinator_samples(broker: Broker) -> Iterator[Sample]:
    """Yield the numbers of groups and transactional ids in the coordinators' shards that are loaded; no shard is loaded
    for this."""
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


def group_commits(broker: Broker) -> list[Commits]:
    """Copy the committed offsets of the loaded groups, up to MAX_COMMITS and MAX_LAGS. Loop thread."""
    coordinators = broker.services.coordinators.made
    groups = None if coordinators is None else coordinators.made_groups
    if groups is None:
        return []
    found = (
        Commits(group, topic, partitions)
        for _, shard in groups.runtime.loaded
        for group in shard.groups
        for topic, partitions in shard.offsets.of_group(group).items()
    )
    commits: list[Commits] = []
    left = MAX_LAGS
    for commit in found:
        left -= len(commit.partitions)
        if left < 0 or len(commits) == MAX_COMMITS:
            if commits and commits[-1].group == commit.group:
                commits[-1] = commits[-1]._replace(has_more=True)
            break
        commits.append(commit._replace(partitions=commit.partitions.copy()))
    return commits


def lag_samples(commits: Iterable[Commits], partitions: Iterable[Partition]) -> Iterator[Sample]:
    """Yield the number of records after each committed offset, if the log is open. Any thread."""
    ends = {}
    for partition in partitions:
        metrics = partition.log_metrics()
        if metrics is not None:
            ends[partition.topic_partition] = metrics.logendoffset
    for group, topic, committed, _ in commits:
        for number, commit in committed.items():
            end = ends.get(TopicPartition(topic, number))
            if end is not None:
                labels = {"group": group, "topic": topic, "partition": str(number)}
                yield Sample("tidelog_group_lag_records", "gauge", labels, max(0, end - commit.offset))


def log_samples(partitions: Iterable[Partition]) -> Iterator[Sample]:
    """Yield sizes and offsets of the logs that are open; no log is opened for this."""
    for partition in partitions:
        metrics = partition.log_metrics()
        if metrics is None:
            continue
        labels = {"topic": partition.topic_partition.topic, "partition": str(partition.topic_partition.partition)}
        for name, value in metrics._asdict().items():
            yield Sample(f"kafka_log_log_{name}", "gauge", labels, value)


def process_samples() -> Iterator[Sample]:
    """Yield memory, CPU time and descriptors of this process, under the names that all Prometheus clients use, and the
    version with its build.
    """
    labels = {"compiled": "yes" if IS_COMPILED else "no", "version": _version()}
    yield Sample("tidelog_build_info", "gauge", labels, 1)
    yield Sample("process_max_fds", "gauge", {}, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Sample("process_cpu_seconds_total", "counter", {}, used.ru_utime + used.ru_stime)
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
        descriptors, started_s = len(os.listdir("/proc/self/fd")), start_time_s()
    except OSError:  # this system has no /proc
        return
    yield Sample("process_resident_memory_bytes", "gauge", {}, pages * os.sysconf("SC_PAGE_SIZE"))
    yield Sample("process_open_fds", "gauge", {}, descriptors)
    yield Sample("process_start_time_seconds", "gauge", {}, started_s)


@cache
def _version() -> str:
    """Return the installed version of Tidelog."""
    return metadata.version("tidelog")


def start_time_s() -> float:
    """Return the Unix time at which this process started. Raises OSError without /proc."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])  # field 22 of proc(5)
    with open("/proc/stat", "rb") as file:
        (booted,) = (int(line.split()[1]) for line in file if line.startswith(b"btime "))
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def cleaner_samples(cleaner: LogCleaner) -> Iterable[Sample]:
    """Yield the counters of all cleaner threads, and their state; names have the prefixes of Kafka's MBeans."""
    counters, manager = cleaner.counters, cleaner.manager
    for field in dataclasses.fields(counters):
        yield Sample(f"kafka_log_logcleaner_{field.name}_total", "counter", {}, getattr(counters, field.name))
    if cleaner.config.enabled:  # a disabled cleaner has no threads, and alerts on missing threads must not fire
        yield Sample("kafka_log_logcleaner_live_threads", "gauge", {}, cleaner.live_threads)
    yield Sample("kafka_log_logcleanermanager_max_dirty_percent", "gauge", {}, 100 * manager.dirtiest_ratio)
    delay_s = manager.max_compaction_delay_ms / 1000
    yield Sample("kafka_log_logcleaner_max_compaction_delay_secs", "gauge", {}, delay_s)


def partition_samples(statuses: Iterable[PartitionStatus]) -> Iterable[Sample]:
    """Yield the cleaning state of every compacted partition."""
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
    """Return Prometheus text: the samples of a family together, after its HELP and TYPE lines."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(_family(sample), []).append(sample)
    lines = []
    for source, members in families.items():
        family = FAMILIES.get(source) or Family(source, members[0].kind, "Not declared.")
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for sample in members:
            name = family.name + sample.name.removeprefix(source)
            lines.append(f"{name}{_labels(sample)} {_number(sample.value * family.scale)}")
    return "\n".join(lines) + "\n"


def _family(sample: Sample) -> str:
    """Return the family of a sample, which is the same for the buckets, count and sum of a histogram."""
    if sample.kind != HISTOGRAM:
        return sample.name
    return sample.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")


def _labels(sample: Sample) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in sample.labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
