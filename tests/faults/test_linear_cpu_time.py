"""CPU time of a request is linear in its size, including work inside C, which the count of calls does not include.

Doubling a request must not triple the CPU time of the thread that serves it; what a broker does in other threads is
done in this one, too. The least of REPEATS measurements counts, and a ratio that is too high is measured again up to
TRIES times: a busy machine makes a request slower, never faster. Both requests are measured in turn and the least of
all tries stays: a short one that was slow by chance would hide that the long one is. ``TIDELOG_ALL_LONG_REQUESTS``
measures every array of every API; the default has the arrays of CHOSEN.

Full garbage collections come as rarely as in a broker: one looks at every object of the process, those of other tests
too, and comes more often within the longer request.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from benchmarks import hostile_data as data
from tests.support.long_requests import Case, all_cases, frame, frame_of
from tests.support.memory_directory import module_directory
from tests.unit.broker.request_world import World, uncounted
from tidelog.broker.loop.garbage import SERVING_THRESHOLDS
from tidelog.broker.loop.thread_rule import suspended
from tidelog.broker.requests.bounds import max_elements
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.record_batch import Record, build_batch

ALL = bool(os.environ.get("TIDELOG_ALL_LONG_REQUESTS"))
ELEMENTS = 3_000 if ALL else 1_000
CHOSEN = {ApiKey.OFFSET_COMMIT, ApiKey.DESCRIBE_CONFIGS, ApiKey.DELETE_TOPICS}
MAX_TIMES = 3.0
FIXED_S = 0.002
"""What a request costs whatever is in it, and the clock's own steps."""
REPEATS, TRIES = 2, 4
ATTEMPTS = 10
LENGTH_BYTES = 4


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with module_directory() as directory, suspended():
        world = World(directory)
        world.dispatcher.runner.clock = lambda: time.monotonic() * 1000
        yield world
        world.data.close()


@pytest.fixture(autouse=True)
def _full_collections_are_rare() -> Iterator[None]:
    """Rare full collections, of newer objects alone. All older ones stay frozen: the process's tests are among them."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SERVING_THRESHOLDS)
    yield
    gc.set_threshold(*before)


def cpu_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def least_cpu_s(world: World, *requests: bytes) -> Iterator[float]:
    """Measure requests in turn: a machine that is slow for a moment is so for one measurement of one of them."""
    for request in requests:
        world.answer(request, uncounted)
    measured = [[sum(world.answer(request, cpu_s)) for request in requests] for _ in range(REPEATS)]
    return map(min, zip(*measured, strict=True))


def steepness(world: World, small: bytes, large: bytes) -> str | None:
    """Return the costs of both, if doubling the request costs too much in each attempt."""
    once = twice = math.inf
    for _ in range(TRIES):
        once, twice = map(min, (once, twice), least_cpu_s(world, small, large))
        if twice <= MAX_TIMES * once + FIXED_S:
            return None
    return f"{once * 1000:.1f} ms, and {twice * 1000:.1f} ms for twice as much"


def cases(api_key: int) -> list[Case]:
    found = list(all_cases(api_key))
    return found if ALL else found[-6:]


@pytest.mark.parametrize(
    "api_key",
    [key for key in REGISTRY if ALL or key in CHOSEN],
    ids=lambda key: ApiKey(key).name,
)
def test_twice_the_elements_are_not_three_times_the_cpu_time(world: World, api_key: int) -> None:
    steep = {}
    for case in cases(api_key):
        count = min(ELEMENTS, max_elements(api_key) // 12)
        found = steepness(world, frame_of(case, count), frame_of(case, 2 * count))
        if found is not None:
            steep[str(case)] = found
    assert steep == {}


class Quadratic:
    """A broker that counts a list, in C, once for each of its bytes."""

    def answer(self, request: bytes, measure: Callable[[Callable[[], object]], float]) -> list[float]:
        elements = list(request)
        return [measure(lambda: [elements.count(256) for _ in request])]


def test_quadratic_work_in_c_is_found() -> None:
    """Four times the CPU time is found in one of a few attempts: noise of a busy machine may hide it in each."""
    attempts = (steepness(Quadratic(), bytes(2_000), bytes(4_000)) for _ in range(ATTEMPTS))  # type: ignore[arg-type]
    assert any(found is not None for found in attempts)


def test_no_full_collection_is_in_a_measurement() -> None:
    def full_collections() -> int:
        return int(gc.get_stats()[2]["collections"])

    before = full_collections()
    made = [[number] for number in range(400_000)]
    assert (len(made), full_collections()) == (400_000, before)


class Shape(NamedTuple):
    """Records of a size, in a produce request; ``is_fetched`` measures the old client's fetch of them instead."""

    name: str
    size: int
    records: Callable[[int], bytes | bytearray]
    version: int = data.PRODUCE_VERSION
    is_fetched: bool = False
    configs: Mapping[str, str] = {}


def empty_parts(codec: CompressionType) -> Callable[[int], bytearray]:
    whole = data.empty_parts(codec)
    return lambda size: data.batch_around(whole[:size], codec)


def headers(count: int) -> bytearray:
    return build_batch([Record(0, data.TIMESTAMP_MS, None, b"v", [("", None)] * count)])


MEBIBYTE = data.MEBIBYTE
OLD = data.OLD_PRODUCE_VERSION
LARGE = {"max.message.bytes": str(64 * MEBIBYTE)}
SHAPES = [
    Shape("gzip of empty members", 20_000, empty_parts(data.GZIP)),
    Shape("lz4 of empty frames", 10_000, empty_parts(data.LZ4)),
    Shape("snappy of empty chunks", 5_000, empty_parts(data.SNAPPY)),
    Shape("small messages of magic 1", 4_000, lambda count: data.old_set(count, 1), OLD),
    Shape("small messages of magic 0", 4_000, lambda count: data.old_set(count, 0), OLD),
    Shape("a wrapper of small messages", 4_000, lambda count: data.old_set(count, 1, data.GZIP), OLD),
    Shape("wrong offset deltas", 8_000, data.lying_batch),
    Shape("headers", 60_000, headers),
    Shape("many records, packed", 60_000, data.packed_records),
    Shape("records that pack well", 4 * MEBIBYTE, lambda size: data.zeros(size, data.GZIP)),
    Shape("records recompressed", MEBIBYTE // 4, data.digits, configs={**LARGE, "compression.type": "zstd"}),
    Shape("records converted for an old client", 8_000, data.packed_records, is_fetched=True),
]


def topic_for(world: World, shape: Shape) -> str:
    """Create the shape's topic; return its name."""
    name = "shape-" + shape.name.replace(" ", "-").replace(",", "")
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in shape.configs.items()]
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1, configs=configs)
    world.answer(frame(CreateTopicsRequest(topics=[topic]), 7), uncounted)
    return name


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_twice_the_records_are_not_three_times_the_cpu_time(world: World, shape: Shape) -> None:
    topic = topic_for(world, shape)
    requests = []
    for partition, size in enumerate((shape.size, 2 * shape.size)):
        produced = data.produce(topic, (partition, shape.records(size)), version=shape.version)[LENGTH_BYTES:]
        if shape.is_fetched:
            world.answer(produced, uncounted)
            produced = data.fetch(topic, data.OLD_FETCH_VERSION, partition)[LENGTH_BYTES:]
        requests.append(produced)
    assert steepness(world, *requests) is None


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_twice_the_partitions_are_not_three_times_the_cpu_time(world: World, is_known: bool) -> None:
    records = build_batch([Record(0, data.TIMESTAMP_MS, None, b"v")])
    topic = "wide" if is_known else "none"
    small, large = (
        data.produce(topic, *((index, records) for index in range(count)))[LENGTH_BYTES:] for count in (300, 600)
    )
    assert steepness(world, small, large) is None
