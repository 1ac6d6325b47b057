"""Scripts about topics, and about configs of topics, brokers, groups and client metrics."""

from __future__ import annotations

from tests.support.questions import Broker
from tests.support.scripts.registry import create, script, topic_id, until_led

PLACEMENTS: list[list[tuple[int, list[int]]]] = [
    [(0, [1])],
    [(1, [1])],
    [(0, [9])],
    [(0, [])],
    [(0, [1, 1])],
    [(0, [1]), (0, [1])],
]
"""Manual assignments of a new topic, as pairs of a partition and its replicas; only the first is valid."""
ADDED: list[list[list[int]]] = [[[1]], [[9]], [[1], [1]], [[]], [[1, 1]], []]
"""Manual assignments of added partitions: the replicas of each partition."""
UNKNOWN_ID = b"\x07" * 16


@script("create_topics")
def create_topics(broker: Broker, version: int) -> None:
    prefix = f"ct{version}"

    def topics(*asked: dict[str, object], only: bool = False) -> None:
        filled = [{"num_partitions": 1, "replication_factor": 1, **topic} for topic in asked]
        broker.ask("create_topics", version, topics=filled, timeout_ms=30_000, validate_only=only)

    if version < 5:
        topics({"name": f"{prefix}-validated", "num_partitions": 2}, only=version >= 1)
    topics({"name": prefix, "num_partitions": 3, "configs": [{"name": "retention.ms", "value": "777"}]})
    topics({"name": prefix})
    for name in ("", ".", "..", "a b", "x" * 250, "__consumer_offsets"):
        topics({"name": name})
    topics({"name": f"{prefix}-zero", "num_partitions": 0})
    topics({"name": f"{prefix}-negative", "num_partitions": -2})
    topics({"name": f"{prefix}-factor", "replication_factor": 2})
    topics({"name": f"{prefix}-factor0", "replication_factor": 0})
    topics({"name": f"{prefix}-twice"}, {"name": f"{prefix}-twice"}, {"name": f"{prefix}-once"})
    for key, value in (
        ("no.such.key", "1"),
        ("retention.ms", "x"),
        ("cleanup.policy", "shred"),
        ("retention.ms", None),
    ):
        topics({"name": f"{prefix}-config", "configs": [{"name": key, "value": value}]})
    for partitions in PLACEMENTS:
        assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in partitions]
        for count in (-1, 1):
            topics(
                {
                    "name": f"{prefix}-placed-{len(broker.answers)}",
                    "num_partitions": count,
                    "replication_factor": count,
                    "assignments": assignments,
                }
            )
    topics({"name": f"{prefix}.dotted"})
    topics({"name": f"{prefix}_dotted"})
    topics()
    if version >= 4:
        topics({"name": f"{prefix}-defaults", "num_partitions": -1, "replication_factor": -1})


@script("metadata")
def metadata(broker: Broker, version: int) -> None:
    name = f"md{version}"
    create(broker, name, 2)
    for flags in (False, True):
        broker.ask(
            "metadata",
            version,
            topics=[{"name": name}, {"name": f"{name}-none"}, {"name": "a b"}, {"name": ""}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=flags,
            include_cluster_authorized_operations=flags,
        )
    if version >= 1:
        broker.ask("metadata", version, topics=[])
    broker.ask("metadata", version, topics=[{"name": name}, {"name": name}], allow_auto_topic_creation=False)
    if version >= 10:
        known = topic_id(broker, name)
        broker.ask("metadata", version, topics=[{"topic_id": known, "name": name}], allow_auto_topic_creation=False)
    if version >= 12:
        for asked in (known, UNKNOWN_ID):
            broker.ask("metadata", version, topics=[{"topic_id": asked, "name": None}], allow_auto_topic_creation=False)


@script("describe_topic_partitions")
def describe_topic_partitions(broker: Broker, version: int) -> None:
    name = f"dtp{version}"
    create(broker, f"{name}-a", 3)
    create(broker, f"{name}-b", 2)
    topics = [{"name": f"{name}-b"}, {"name": f"{name}-a"}, {"name": f"{name}-none"}]
    for limit in (2000, 1, 3, 4, 0, -1):
        broker.ask("describe_topic_partitions", version, topics=topics, response_partition_limit=limit)
    for cursor in ((f"{name}-a", 1), (f"{name}-a", 9), (f"{name}-b", 0), (f"{name}-c", 0), (f"{name}-a", -1)):
        at = {"topic_name": cursor[0], "partition_index": cursor[1]}
        broker.ask("describe_topic_partitions", version, topics=topics, response_partition_limit=3, cursor=at)


@script("create_partitions")
def create_partitions(broker: Broker, version: int) -> None:
    name = f"cp{version}"
    create(broker, name)

    def grow(*topics: dict[str, object], only: bool = False) -> None:
        asked = [{"assignments": None, **topic} for topic in topics]
        broker.ask("create_partitions", version, topics=asked, timeout_ms=30_000, validate_only=only)

    grow({"name": name, "count": 2}, only=True)
    grow({"name": name, "count": 2})
    for count in (2, 1, 0, -1):
        grow({"name": name, "count": count})
    grow({"name": f"{name}-none", "count": 2})
    grow({"name": name, "count": 3}, {"name": name, "count": 4})
    for placed in ADDED:
        assignments = [{"broker_ids": ids} for ids in placed]
        grow({"name": name, "count": 3, "assignments": assignments}, only=True)
    grow({"name": name, "count": 3, "assignments": [{"broker_ids": [1]}]})
    until_led(broker, name, 3)


@script("delete_topics")
def delete_topics(broker: Broker, version: int) -> None:
    name = f"dt{version}"
    create(broker, name)
    create(broker, f"{name}-b")
    create(broker, f"{name}-c")
    if version <= 5:
        broker.ask("delete_topics", version, topic_names=[name, f"{name}-none", f"{name}-b"], timeout_ms=30_000)
        broker.ask("delete_topics", version, topic_names=[f"{name}-c", f"{name}-c"], timeout_ms=30_000)
        broker.ask("delete_topics", version, topic_names=[], timeout_ms=30_000)
        return
    known, both = topic_id(broker, name), topic_id(broker, f"{name}-b")

    def delete(*asked: tuple[str | None, bytes]) -> None:
        topics = [{"name": topic, "topic_id": by_id} for topic, by_id in asked]
        broker.ask("delete_topics", version, topics=topics, timeout_ms=30_000)

    delete((None, known), (None, UNKNOWN_ID), (f"{name}-none", bytes(16)))
    delete((f"{name}-b", both))
    delete((f"{name}-c", bytes(16)), (f"{name}-c", bytes(16)))


KEYS = ["retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes", "compression.type", "flush.messages"]


@script("describe_configs")
def describe_configs(broker: Broker, version: int) -> None:
    name = f"dc{version}"
    create(broker, name, retention_ms="999")

    def describe(kind: int, of: str, keys: list[str] | None) -> None:
        resource = {"resource_type": kind, "resource_name": of, "configuration_keys": keys}
        broker.ask("describe_configs", version, resources=[resource], include_synonyms=version % 2 == 0)

    describe(2, name, KEYS)
    describe(2, name, ["no.such.key", "retention.ms"])
    describe(2, f"{name}-none", None)
    describe(2, "a b", None)
    describe(2, "", None)
    describe(4, "1", ["num.partitions", "group.max.size"])
    describe(4, "", ["num.partitions"])
    for bad in ("7", "x"):
        describe(4, bad, None)
    describe(8, "2", None)
    describe(8, "", None)
    describe(32, f"{name}-group", ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"])
    describe(64, "x", None)


@script("alter_configs")
def alter_configs(broker: Broker, version: int) -> None:
    name = f"ac{version}"
    create(broker, name)

    def alter(kind: int, of: str, *pairs: tuple[str, str | None], only: bool = False) -> None:
        configs = [{"name": key, "value": value} for key, value in pairs]
        resource = {"resource_type": kind, "resource_name": of, "configs": configs}
        broker.ask("alter_configs", version, resources=[resource], validate_only=only)

    alter(2, name, ("retention.ms", "5"), only=True)
    alter(2, name, ("retention.ms", "6"), ("cleanup.policy", "compact"))
    for pair in (("retention.ms", "x"), ("no.such", "1"), ("retention.ms", None), ("segment.bytes", "1")):
        alter(2, name, pair)
    alter(2, name, ("retention.ms", "1"), ("retention.ms", "2"))
    alter(2, f"{name}-none", ("retention.ms", "5"))
    alter(2, "", ("retention.ms", "5"))
    for of in ("7", "x"):
        alter(4, of, ("num.partitions", "5"))
    alter(64, "x", ("a", "5"))
    _described(broker, 2, name)


@script("incremental_alter_configs")
def incremental_alter_configs(broker: Broker, version: int) -> None:
    name = f"ia{version}"
    create(broker, name)

    def alter(kind: int, of: str, *changes: tuple[str, int, str | None], only: bool = False) -> None:
        configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in changes]
        resource = {"resource_type": kind, "resource_name": of, "configs": configs}
        broker.ask("incremental_alter_configs", version, resources=[resource], validate_only=only)

    alter(2, name, ("retention.ms", 0, "5"), only=True)
    alter(2, name, ("retention.ms", 0, "6"), ("cleanup.policy", 2, "compact"))
    alter(2, name, ("cleanup.policy", 3, "delete"))
    alter(2, name, ("retention.ms", 1, None))
    alter(2, name, ("retention.ms", 2, "5"))
    for change in (("retention.ms", 0, "x"), ("no.such", 0, "1"), ("retention.ms", 0, None), ("no.such", 1, None)):
        alter(2, name, change)
    alter(2, name, ("retention.ms", 0, "1"), ("retention.ms", 0, "2"))
    alter(2, f"{name}-none", ("retention.ms", 0, "5"))
    alter(2, "", ("retention.ms", 0, "5"))
    alter(4, "7", ("num.io.threads", 0, "5"))
    alter(4, "x", ("num.io.threads", 0, "5"))
    alter(4, "1", ("log.dirs", 0, "/x"))
    alter(16, f"{name}-m", ("interval.ms", 0, "1000"), ("metrics", 0, "a.b"), ("match", 0, "client_id=x"))
    alter(16, f"{name}-m", ("interval.ms", 0, "1"))
    alter(16, f"{name}-m", ("no.such", 0, "1"))
    alter(16, "", ("interval.ms", 0, "1000"))
    alter(32, f"{name}-g", ("consumer.session.timeout.ms", 0, "46000"))
    alter(32, f"{name}-g", ("consumer.session.timeout.ms", 0, "1"))
    alter(32, f"{name}-g", ("consumer.heartbeat.interval.ms", 0, "90000"))
    alter(32, f"{name}-g", ("no.such", 0, "1"))
    alter(32, "", ("consumer.session.timeout.ms", 0, "46000"))
    alter(64, "x", ("a", 0, "5"))
    for kind, of in ((2, name), (16, f"{name}-m"), (32, f"{name}-g")):
        _described(broker, kind, of)


def _described(broker: Broker, kind: int, of: str) -> None:
    keys = None if kind == 16 else [*KEYS, "consumer.session.timeout.ms"]
    resource = {"resource_type": kind, "resource_name": of, "configuration_keys": keys}
    broker.ask("describe_configs", 4, resources=[resource])


@script("list_config_resources")
def list_config_resources(broker: Broker, version: int) -> None:
    """Ask for each kind of resource; version 0 lists client metrics only."""
    if version == 0:
        broker.ask("list_config_resources", version)
        return
    for kinds in ([4], [8], [16], [64], [99]):
        broker.ask("list_config_resources", version, resource_types=kinds)
