"""The table of scripts about APIs, and functions that these scripts share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.questions import Broker
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

Script = Callable[[Broker, int], None]
WAIT_S = 60.0
GROUP_RESOURCE = 32
"""The type of groups in requests about configs."""
TIMESTAMP = int(time.time()) * 1000
"""The time of the records: the current time, because a broker may roll and delete segments with old records."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One script: ``run`` sends requests of ``api`` in the given version."""

    api: str
    run: Script

    @property
    def api_key(self) -> int:
        return int(ApiKey[self.api.upper()])


SCRIPTS: list[Entry] = []
"""Scripts of APIs except those of share groups and of streams groups, which have their own tables."""


def script(api: str) -> Callable[[Script], Script]:
    """Register a script for an API."""

    def register(run: Script) -> Script:
        SCRIPTS.append(Entry(api, run))
        return run

    return register


def create(broker: Broker, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic, and wait until all its partitions answer."""
    pairs = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": pairs}
    created = broker.ask_quietly("create_topics", 5, topics=[topic], timeout_ms=30_000).topics[0]
    assert created.error_code == 0, created
    until_led(broker, name, partitions)


def until_led(broker: Broker, name: str, partitions: int) -> None:
    """Wait until every partition of a topic answers ListOffsets."""
    asked = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
    deadline = time.monotonic() + WAIT_S
    while True:
        found = broker.ask_quietly("list_offsets", 1, topics=[{"name": name, "partitions": asked}])
        if all(partition.error_code == 0 for partition in found.topics[0].partitions):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def until_error(broker: Broker, code: int, api: str, version: int, **fields: object) -> None:
    """Repeat a request until its error code is ``code``: Kafka has then finished its work after an earlier response."""
    deadline = time.monotonic() + WAIT_S
    while broker.ask_quietly(api, version, **fields).error_code != code:
        assert time.monotonic() < deadline, (api, fields)
        time.sleep(0.01)


def configure_group(broker: Broker, group: str, **configs: str | None) -> None:
    """Set configs of a group, and wait until DescribeConfigs returns the new values; None removes a config.

    A Kafka broker answers before it uses new values. It uses them before topics that are created after this call.
    """
    each = [
        {"name": key.replace("_", "."), "config_operation": 0 if value is not None else 1, "value": value}
        for key, value in configs.items()
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": each}
    answer = broker.ask_quietly("incremental_alter_configs", 1, resources=[resource])
    assert answer.responses[0].error_code == 0, answer
    wanted = {key.replace("_", "."): value for key, value in configs.items() if value is not None}
    asked = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": list(wanted)}
    deadline = time.monotonic() + WAIT_S
    while True:
        found = broker.ask_quietly("describe_configs", 4, resources=[asked]).results[0]
        if wanted.items() <= {config.name: config.value for config in found.configs}.items():
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def topic_id(broker: Broker, name: str) -> bytes:
    """Return the id of a topic."""
    found: bytes = broker.ask_quietly("metadata", 12, topics=[{"name": name}]).topics[0].topic_id
    return found


def batch(*values: bytes | None, key: bytes | None = None, **options: int | bool) -> memoryview:
    """Build a batch of records with these values; ``options`` are fields of BatchOptions."""
    records = [Record(offset, TIMESTAMP + offset, key, value, []) for offset, value in enumerate(values)]
    return memoryview(build_batch(records, BatchOptions(**options)))  # type: ignore[arg-type]


def write(broker: Broker, name: str, *values: bytes, partition: int = 0) -> None:
    """Produce these values as one batch."""
    partitions = [{"index": partition, "records": batch(*values)}]
    topics = [{"name": name, "partition_data": partitions}]
    response = broker.ask_quietly("produce", 7, acks=-1, timeout_ms=5_000, topic_data=topics)
    assert response.responses[0].partition_responses[0].error_code == 0, response
