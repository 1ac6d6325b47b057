"""The admin interface's pages, on aiohttp. Imported with the first connection (``broker.admin_http``).

GET  /healthz                      200 while the process answers
GET  /readyz                       200 when every log directory works, else 503 with the reasons
GET  /metrics                      Prometheus text
GET  /compaction                   JSON: state of every compacted partition
POST /compaction/TOPIC             clean its partitions now; JSON reports when done
     ?dry_run=1 changes nothing, ?wait=0 answers 202 at once
GET  /topics/TOPIC/records         records by key, tag and time (``broker.find_app``)
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from aiohttp import web

from broker.compaction import cleaner_of
from broker.metrics import Sample
from cleaner.cleaner_manager import PartitionStatus
from log.topic_partition import TopicPartition

if TYPE_CHECKING:
    from broker.broker import Broker
    from cleaner.log_cleaner import LogCleaner

BROKER: web.AppKey[Any] = web.AppKey("broker", object)
CONTENT_TYPE = "text/plain; version=0.0.4"
STOP_TIMEOUT_S = 1.0


async def serve(broker: Broker, listener: socket.socket) -> web.AppRunner:
    """Take over the listening socket. ``cleanup`` of what is returned closes it."""
    app = web.Application()
    app[BROKER] = broker
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
            web.get("/compaction", compaction),
            web.post("/compaction/{topic}", run_compaction),
            web.get("/topics/{topic}/records", find_records),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_TIMEOUT_S)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


async def healthz(_request: web.Request) -> web.Response:
    """The loop turns."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """The logs are served."""
    directories = request.app[BROKER].log_manager.directories
    failures = [f"{d.path}: {d.state.failure}" for d in directories if d.state.failure is not None]
    return web.Response(text="\n".join(failures or ["ok"]) + "\n", status=503 if failures else 200)


async def metrics(request: web.Request) -> web.Response:
    """Counters, gauges and summaries of the broker and of its cleaner."""
    broker = request.app[BROKER]
    cleaner = cleaner_of(broker)
    statuses = await broker.loop.run_in_executor(None, cleaner.status)
    samples = [*broker.metrics.collect(), *cleaner_samples(cleaner), *partition_samples(statuses)]
    response = web.Response(text=render(samples))
    response.headers["Content-Type"] = CONTENT_TYPE
    return response


def cleaner_samples(cleaner: LogCleaner) -> Iterable[Sample]:
    """What all cleaner threads did, and how they are; names follow Kafka's MBeans."""
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
                "map_utilization": status.last_round.map_utilization,
                "collision_rate": status.last_round.collision_rate,
                "unreadable_batches": status.last_round.unreadable_batches,
            }
        for name, value in values.items():
            yield Sample(f"kafka_log_logcleaner_partition_{name}", "gauge", labels, float(value))


def render(samples: Iterable[Sample]) -> str:
    """Prometheus text, samples of one name together."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.name, []).append(sample)
    lines = []
    for name, members in families.items():
        kind = members[0].kind
        if kind != "histogram":
            lines.append(f"# TYPE {name} {kind}")
        elif not name.endswith(("_count", "_sum")):
            lines.append(f"# TYPE {name} summary")
        lines += [f"{name}{_labels(sample)} {_number(sample.value)}" for sample in members]
    return "\n".join(lines) + "\n"


def _labels(sample: Sample) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in sample.labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def plain(value: Any) -> Any:
    """A frozen value as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, TopicPartition):
        return {"topic": value.topic, "partition": value.partition}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


async def compaction(request: web.Request) -> web.Response:
    """Every compacted partition."""
    broker = request.app[BROKER]
    statuses = await broker.loop.run_in_executor(None, cleaner_of(broker).status)
    return web.json_response([plain(status) for status in statuses])


async def run_compaction(request: web.Request) -> web.Response:
    """Clean all partitions of a topic."""
    broker = request.app[BROKER]
    topic = request.match_info["topic"]
    image = broker.metadata.topics.get(topic)
    if image is None:
        return web.json_response({"error": f"there is no topic {topic}"}, status=404)
    dry_run = request.query.get("dry_run", "0") in ("1", "true")
    partitions = [TopicPartition(topic, number) for number in range(image.partition_count)]
    cleaner = cleaner_of(broker)
    futures = [asyncio.wrap_future(cleaner.request_clean(p, dry_run=dry_run)) for p in partitions]
    if request.query.get("wait", "1") in ("0", "false"):
        for future in futures:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return web.json_response({"requested": len(futures)}, status=202)
    results = await asyncio.gather(*futures, return_exceptions=True)
    answer = [_result(partition, result) for partition, result in zip(partitions, results, strict=True)]
    return web.json_response(answer, status=409 if any("error" in entry for entry in answer) else 200)


async def find_records(request: web.Request) -> web.StreamResponse:
    """Look records up; imported with the first question."""
    from broker.find_app import answer_find

    return await answer_find(request.app[BROKER], request)


def _result(partition: TopicPartition, result: Any) -> dict[str, Any]:
    if isinstance(result, BaseException):
        return {**plain(partition), "error": f"{type(result).__name__}: {result}"}
    return {**plain(partition), **plain(result)}
