"""The admin interface's pages over a broker's parts, through a socket in the test's directory: no port, no process."""

from __future__ import annotations

import asyncio
import errno
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from tests.support.http_apps import serving
from tests.support.prometheus import Page, parse
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.admin.app import serve
from tidelog.broker.admin.prometheus import MAX_COMMITS, MAX_LAGS, group_commits, request_samples
from tidelog.broker.cleaning import cleaner_of
from tidelog.broker.coordinator.group.offsets import OffsetAndMetadata, OffsetStore
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.loop.thread_rule import suspended
from tidelog.broker.metrics.request_times import NAME as TIMES
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import LogStorageError, OsFileSystem
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.coordinator_records.group import OffsetCommitKey, OffsetCommitValue
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import Record, build_batch

TOPIC = "compacted"


class Pages:
    """A client of the app over ``parts``."""

    def __init__(self, parts: DataBroker, session: aiohttp.ClientSession) -> None:
        self.parts = parts
        self.session = session

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://admin{path}") as response:
            return response.status, await response.text()

    async def post(self, path: str) -> tuple[int, Any]:
        async with self.session.post(f"http://admin{path}") as response:
            return response.status, await response.json()

    async def metrics(self) -> Page:
        async with self.session.get("http://admin/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4"
            return parse(await response.text())

    def produce(self, *pairs: tuple[bytes, bytes | None]) -> None:
        """Append one batch to partition 0 of the compacted topic."""
        records = [Record(number, 1_700_000_000_000, key, value) for number, (key, value) in enumerate(pairs)]
        partition = self.parts.replica_manager.partition(TOPIC, 0)
        info = partition.append_records(memoryview(build_batch(records)))
        partition.bytes_in += info.size_bytes


@asynccontextmanager
async def admin(directory: Path, **settings: str) -> AsyncIterator[Pages]:
    texts = {name.replace("_", "."): value for name, value in settings.items()} | {"admin.allowed.hosts": "admin"}
    parts = DataBroker(directory, texts)
    parts.broker = replace(parts.broker, loop=asyncio.get_running_loop())
    if TOPIC not in parts.broker.metadata.topics:
        with opening_expected():
            create_topic(parts, TOPIC, 2, 1, {"cleanup.policy": "compact"})
    try:
        async with serving(serve, parts.broker, directory / "admin") as session:
            yield Pages(parts, session)
    finally:
        await asyncio.to_thread(parts.stop_threads)
        parts.close()


async def test_a_served_broker_is_healthy_and_ready(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        assert await pages.get("/healthz") == (200, "ok\n")
        assert await pages.get("/readyz") == (200, "ok\n")


async def test_not_ready_while_a_directory_is_offline(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.parts.log_manager.directories[0].state.failure = KafkaStorageError("sync failed")

        status, text = await pages.get("/readyz")

        assert (status, text) == (503, f"{tmp_path}: sync failed\n")
        assert (await pages.get("/healthz"))[0] == 200
        pages.parts.log_manager.directories[0].state.failure = None


async def test_full_directories_and_refused_logs_are_reported_and_refused_logs_can_be_retried(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.produce((b"key", b"value"))
    log = next((tmp_path / f"{TOPIC}-0").glob("*.log"))
    wrong = log.rename(log.with_name(f"{7:020d}.log"))
    async with admin(tmp_path) as pages:
        manager = pages.parts.log_manager
        with pytest.raises(KafkaStorageError), opening_expected():
            manager.get_log(TopicPartition(TOPIC, 0))
        manager.directories[0].state.note_error(LogStorageError("write", str(tmp_path), errno.ENOSPC), OsFileSystem())

        status, text = await pages.get("/readyz")

        assert status == 503
        assert f"{tmp_path}: write of {tmp_path} failed: No space left on device\n" in text
        assert f"{TOPIC}-0 is refused: " in text
        status, answer = await pages.post("/logs/retry")
        assert (status, answer[0]["topic"], answer[0]["partition"]) == (200, TOPIC, 0)
        wrong.rename(log)
        assert await pages.post("/logs/retry") == (200, [])
        manager.room.run()
        assert await pages.get("/readyz") == (200, "ok\n")


async def calls_of(pages: Pages, path: str, method: str = "get") -> int:
    """Count the calls of Python and C on the loop's thread until a page is complete."""
    calls = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    with suspended():
        sys.setprofile(note)
        try:
            assert (await getattr(pages, method)(path))[0] in (200, 202)
        finally:
            sys.setprofile(None)
    return calls


LOGS = 300
WIDE = 60
MAX_CALLS_PER_LOG = 0.5


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/compaction"])
async def test_a_page_costs_the_loop_nothing_for_each_open_log(tmp_path: Path, path: str) -> None:
    async with admin(tmp_path) as pages:
        await pages.get(path)
        before = await calls_of(pages, path)
        with opening_expected():
            create_topic(pages.parts, "wide", LOGS, 1, {"cleanup.policy": "compact"})
            for number in range(LOGS):
                assert pages.parts.replica_manager.partition("wide", number).local_log is not None

        # Timers of the loop run in between, the more when it is held up: the least of three is the page's own.
        wide = [await calls_of(pages, path) for _ in range(3)]
        assert min(wide) - before <= LOGS * MAX_CALLS_PER_LOG


@pytest.mark.parametrize("path", ["/compaction/wide?dry_run=1", "/compaction/wide?wait=0"])
async def test_cleaning_a_wide_topic_costs_the_loop_little_for_each_partition(tmp_path: Path, path: str) -> None:
    async with admin(tmp_path) as pages:
        with opening_expected():
            create_topic(pages.parts, "wide", WIDE, 1, {"cleanup.policy": "compact"})
            create_topic(pages.parts, "narrow", 1, 1, {"cleanup.policy": "compact"})
            for number in range(WIDE):
                assert pages.parts.replica_manager.partition("wide", number).local_log is not None
        await pages.post(path)
        one = await calls_of(pages, path.replace("wide", "narrow"), "post")

        # Timers of the loop run in between, now and then: the least of three is the page's own.
        wide = [await calls_of(pages, path, "post") for _ in range(3)]
        assert min(wide) - one <= WIDE * MAX_CALLS_PER_LOG


async def test_unknown_page_and_method_are_refused(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        assert (await pages.get("/nothing"))[0] == 404
        assert (await pages.get(f"/compaction/{TOPIC}"))[0] == 405


async def test_metrics_include_topics_logs_process_and_cleaner(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.produce((b"key", b"value"), (b"key", b"other"))
        log = pages.parts.replica_manager.partition(TOPIC, 0).local_log

        page = await pages.metrics()

        labels = {"topic": TOPIC, "partition": "0"}
        assert page.value("kafka_log_log_size_bytes", **labels) == log.size_bytes > 0
        assert page.value("kafka_log_log_logendoffset", **labels) == 2
        assert page.value("kafka_log_log_numlogsegments", **labels) == 1
        assert page.value("kafka_server_topicmetrics_bytesin_total", topic=TOPIC) == log.size_bytes
        assert page.value("process_resident_memory_bytes") > 1e7
        assert (
            page.value("process_start_time_seconds") <= time.time() <= page.value("process_start_time_seconds") + 86_400
        )
        assert page.value("kafka_log_logcleaner_live_threads") == 1
        assert page.value("kafka_log_logcleaner_partition_quarantined", **labels) == 0
        assert page.types["kafka_log_logcleaner_rounds_total"] == "counter"


async def test_a_cleaner_that_is_switched_off_has_no_threads_to_miss(tmp_path: Path) -> None:
    """The metric of live threads must be absent, because an alert watches for the value 0, that is for threads that
    died."""
    async with admin(tmp_path, log_cleaner_enable="false") as pages:
        page = await pages.metrics()
        assert "kafka_log_logcleaner_live_threads" not in page.types
        assert page.types["kafka_log_logcleaner_rounds_total"] == "counter"


async def test_an_unused_log_is_not_opened_for_metrics(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        partition = pages.parts.replica_manager.partition(TOPIC, 1)
        before = partition.is_open

        page = await pages.metrics()

        assert partition.is_open is before
        known = ("kafka_log_log_size_bytes", frozenset({"topic": TOPIC, "partition": "1"}.items()))
        assert (known in page.samples) == before


async def test_a_histogram_has_buckets_in_seconds(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.parts.broker.metrics.histogram(TIMES, request="Fetch").record(500)

        page = await pages.metrics()

        assert page.types[TIMES] == "histogram"
        assert page.value(f"{TIMES}_count", request="Fetch") == 1
        assert page.value(f"{TIMES}_bucket", request="Fetch", le="0.000256") == 0
        assert page.value(f"{TIMES}_bucket", request="Fetch", le="0.000512") == 1
        assert page.value(f"{TIMES}_sum", request="Fetch") == 0.0005


async def test_every_metric_is_declared(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.produce((b"key", b"value"))
        assert "Not declared" not in (await pages.get("/metrics"))[1]


async def test_metrics_of_internal_topics_are_included_on_request(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.parts.make_internal_topics("__consumer_offsets")
        pages.parts.replica_manager.partition("__consumer_offsets", 0).open()
        labels = frozenset({"topic": "__consumer_offsets", "partition": "0"}.items())
        assert ("kafka_log_log_logendoffset", labels) not in (await pages.metrics()).samples
        assert ("kafka_log_log_logendoffset", labels) in parse((await pages.get("/metrics?internal=1"))[1]).samples
        assert (await pages.get("/metrics?internal=perhaps"))[0] == 400


async def test_requests_are_counted_by_api_and_version(tmp_path: Path) -> None:
    routes: Any = [SimpleNamespace(api_key=ApiKey.LIST_OFFSETS, api_version=7, requests=3)]
    async with admin(tmp_path) as pages:
        pages.parts.broker.metrics.add_source(lambda: request_samples(routes))

        page = await pages.metrics()

        assert page.value("kafka_network_requestmetrics_requests_total", request="ListOffsets", version="7") == 3


async def test_coordinators_are_counted_once_there_are_any(tmp_path: Path) -> None:
    def loaded(**state: Any) -> Any:
        """Return coordinators with one loaded shard: asking for all shards would raise, and load the other."""
        return SimpleNamespace(runtime=SimpleNamespace(loaded=[(0, SimpleNamespace(**state))]))

    async with admin(tmp_path) as pages:
        name = "kafka_coordinator_group_groupmetadatamanager_numgroups"
        assert name not in (await pages.metrics()).types
        pages.produce((b"key", b"value"), (b"key", b"other"))
        offsets = OffsetStore()
        for partition, offset in ((0, 1), (7, 1)):
            key = OffsetCommitKey(group="a", topic=TOPIC, partition=partition)
            offsets.replay(key, OffsetCommitValue(offset=offset), record_offset=0, producer_id=-1)
        pages.parts.broker.services.coordinators.made = cast(
            Any,
            SimpleNamespace(
                made_groups=loaded(groups={"a": 1, "b": 2}, offsets=offsets),
                made_transactions=loaded(transactions={"t": 1}),
            ),
        )

        page = await pages.metrics()

        assert page.value(name) == 2
        assert page.value("kafka_coordinator_transaction_transactionalids") == 1
        lags = {labels: value for (name, labels), value in page.samples.items() if name == "tidelog_group_lag_records"}
        assert lags == {frozenset({"group": "a", "topic": TOPIC, "partition": "0"}.items()): 1}


@pytest.mark.parametrize("partitions", [1, 1_000, MAX_LAGS // 2, MAX_LAGS + 1])
def test_the_lag_is_reported_for_a_limited_number_of_groups(partitions: int) -> None:
    """The loop copies all reported lags, and a monitoring system keeps a time series for each."""
    topic = dict.fromkeys(range(partitions), OffsetAndMetadata(0, 1, -1, "", 0, 0))
    groups = [str(number) for number in range(MAX_COMMITS + 1)]
    offsets = SimpleNamespace(of_group=lambda _: {TOPIC: topic})
    runtime = SimpleNamespace(loaded=[(0, SimpleNamespace(groups=groups, offsets=offsets))])
    made = SimpleNamespace(made_groups=SimpleNamespace(runtime=runtime))
    services = SimpleNamespace(coordinators=SimpleNamespace(made=made))
    commits = group_commits(cast(Any, SimpleNamespace(services=services)))
    assert len(commits) == min(MAX_COMMITS, MAX_LAGS // partitions)
    assert not any(one.has_more for one in commits)


def test_a_group_that_is_cut_at_the_limit_says_so() -> None:
    topics = {f"topic-{number}": {0: OffsetAndMetadata(0, 1, -1, "", 0, 0)} for number in range(MAX_COMMITS)}
    offsets = SimpleNamespace(of_group=lambda group: {TOPIC: topics["topic-0"]} if group == "a" else topics)
    runtime = SimpleNamespace(loaded=[(0, SimpleNamespace(groups=["a", "b"], offsets=offsets))])
    made = SimpleNamespace(made_groups=SimpleNamespace(runtime=runtime))
    services = SimpleNamespace(coordinators=SimpleNamespace(made=made))
    commits = group_commits(cast(Any, SimpleNamespace(services=services)))
    assert [one.group for one in commits if one.has_more] == ["b"]
    assert commits[-1].has_more


async def test_label_values_are_escaped(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.parts.broker.metrics.add_gauge("tidelog_odd", lambda: 0.5, reason='a "quoted"\\\nline')

        text = (await pages.get("/metrics"))[1]

        assert 'tidelog_odd{reason="a \\"quoted\\"\\\\\\nline"} 0.5\n' in text
        parse(text)


async def test_run_cleans_every_partition_and_returns_reports(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.produce(*[(b"key %d" % (number % 3), b"value") for number in range(30)])

        status, answer = await pages.post(f"/compaction/{TOPIC}?dry_run=1")
        assert status == 200
        assert (answer[0]["dry_run"], answer[0]["records_before"], answer[0]["records_after"]) == (True, 30, 3)
        status, answer = await pages.post(f"/compaction/{TOPIC}")

        assert status == 200
        assert [(entry["partition"], entry["records_after"]) for entry in answer] == [(0, 3), (1, 0)]
        page = await pages.metrics()
        assert page.value("kafka_log_logcleaner_records_dropped_total") == 27
        assert page.value("kafka_log_logcleaner_partition_dirty_bytes", topic=TOPIC, partition="0") == 0


async def test_run_without_waiting_is_accepted(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        assert await pages.post(f"/compaction/{TOPIC}?wait=0") == (202, {"requested": 2})


@pytest.mark.parametrize(("elsewhere", "cleaned"), [((1,), [0]), ((0, 1), None)])
async def test_run_cleans_only_the_replicas_of_this_broker(
    tmp_path: Path, elsewhere: tuple[int, ...], cleaned: list[int] | None
) -> None:
    """In a cluster other brokers may have the replicas of a partition."""
    async with admin(tmp_path) as pages:
        metadata = pages.parts.broker.metadata
        image = metadata.topics[TOPIC]
        states = [
            state._replace(replicas=(99,), isr=(99,), leader=99) if number in elsewhere else state
            for number, state in enumerate(image.partitions)
        ]
        metadata.put(image._replace(partitions=tuple(states)))
        status, answer = await pages.post(f"/compaction/{TOPIC}")
        if cleaned is None:
            node_id = pages.parts.broker.node_id
            assert (status, answer) == (409, {"error": f"broker {node_id} has no replica of {TOPIC}"})
        else:
            assert (status, [entry["partition"] for entry in answer]) == (200, cleaned)


async def test_run_of_an_unknown_topic_is_not_found(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        assert await pages.post("/compaction/nothing") == (404, {"error": "there is no topic nothing"})


async def test_run_opens_logs_that_were_not_used_since_the_start(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.produce((b"key", b"value"), (b"key", b"other"))
    async with admin(tmp_path) as pages:
        status, answer = await pages.post(f"/compaction/{TOPIC}")

        assert status == 200
        assert [entry["records_after"] for entry in answer] == [1, 0]


async def test_run_says_why_a_log_is_refused(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        pages.produce((b"key", b"value"))
    log = next((tmp_path / f"{TOPIC}-0").glob("*.log"))
    log.rename(log.with_name(f"{7:020d}.log"))
    async with admin(tmp_path) as pages:
        status, answer = await pages.post(f"/compaction/{TOPIC}")

        assert status == 409
        assert "begins with offset 0, which does not fit its name" in answer[0]["error"]
        assert "error" not in answer[1]


async def test_run_of_a_topic_that_is_not_compacted_is_refused(tmp_path: Path) -> None:
    async with admin(tmp_path) as pages:
        with opening_expected():
            create_topic(pages.parts, "plain", 1, 1, {})
        refused = {"error": "plain is not compacted: its cleanup.policy has no compact"}
        assert await pages.post("/compaction/plain?wait=0") == (409, refused)


async def test_a_refused_run_gives_the_reason_for_each_partition(tmp_path: Path) -> None:
    async with admin(tmp_path, log_cleaner_enable="false") as pages:
        status, answer = await pages.post(f"/compaction/{TOPIC}")

        assert status == 409
        assert answer[1] == {
            "topic": TOPIC,
            "partition": 1,
            "error": "the cleaner does not run",
        }


@pytest.mark.parametrize("state", ["idle", "in progress"])
async def test_compaction_lists_state_of_every_partition(tmp_path: Path, state: str) -> None:
    async with admin(tmp_path) as pages:
        pages.produce((b"key", b"value"))
        if state == "in progress":
            log = pages.parts.replica_manager.partition(TOPIC, 0).local_log
            cleaner_of(pages.parts.broker).manager.grab(log)

        async with pages.session.get("http://admin/compaction") as response:
            found = {entry["topic_partition"]["partition"]: entry for entry in await response.json()}

        assert found[0]["state"] == state
        assert found[0]["last_round"] is None
