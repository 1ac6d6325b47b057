"""Requests of random bytes (fault F16 of docs/internals/faults.md): each gets a response, no response, or a closed
connection, and nothing leaks."""

from __future__ import annotations

import gc
import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Pending
from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.transferable import release_slices

CASES = int(os.environ.get("TIDELOG_FUZZ_CASES", "100000"))
SEED = 20_261_121
SMALL_BYTES = bytes([0, 0, 0, 1, 2, 255][byte % 6] for byte in range(256))
"""Table that turns random bytes into those with which half of the bodies are filled."""
REPLACED = 162
"""So many of 256 bytes of these bodies are replaced."""
LARGE_BODIES = 100
"""One body of so many is large: arrays of thousands of elements, decoded and handled in steps."""
CPU_LIMIT_S = 1.0
"""For one turn of any request: fifty times what is promised, for a shared machine."""
LEAK_LIMIT_BYTES = 16 * 1024 * 1024


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path, {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"})
    create_topic(data, "t", 2)
    yield data
    data.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def random_frame(choose: random.Random, keys: list[int]) -> bytearray:
    key = choose.choice(keys)
    entry = REGISTRY[key]
    version = choose.randint(entry.min_version, entry.max_version + 1)
    body = bytearray(choose.randbytes(choose.choice([0, 2, 5, 17, 60, 300])))
    if not choose.randrange(LARGE_BODIES):
        body = bytearray(choose.randbytes(300)) + bytes([choose.choice([0, 1, 2])]) * choose.choice([9_000, 40_000])
        struct.pack_into(">i", body, choose.randrange(12), choose.choice([100, 3_000, 9_000]))
    if choose.random() < 0.5:  # zeros keep decoders going for longer than noise does
        small = choose.randbytes(len(body)).translate(SMALL_BYTES)
        is_replaced = np.frombuffer(choose.randbytes(len(body)), np.uint8) < REPLACED
        body[:] = np.where(is_replaced, np.frombuffer(small, np.uint8), np.frombuffer(body, np.uint8)).tobytes()
    header = struct.pack(">hhih", key, version, choose.randrange(2**31), 1) + b"f"
    return bytearray(header + (b"\0" if version >= FIRST_FLEXIBLE_VERSION[key] else b"") + body)


def test_random_requests_raise_no_unexpected_error_and_leak_nothing(
    data: DataBroker, caplog: pytest.LogCaptureFixture
) -> None:
    choose = random.Random(SEED)
    dispatcher, context = Dispatcher(data.broker), data.context(0)
    keys = sorted(REGISTRY)
    settled = 0
    for number in range(CASES):
        if number == CASES // 4:
            gc.collect()
            settled = resident_bytes()
        frame = memoryview(random_frame(choose, keys))
        began = time.thread_time()
        try:
            answer = dispatcher.dispatch(context, frame)
        except (InvalidRequestError, CloseConnectionError):
            continue
        finally:
            assert time.thread_time() - began <= CPU_LIMIT_S, bytes(frame[:300]).hex()
        if isinstance(answer, Pending):
            answer.abandon()
        elif isinstance(answer, list):
            release_slices(answer)
        data.loop.run_soon()
    gc.collect()
    assert resident_bytes() - settled < LEAK_LIMIT_BYTES
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
