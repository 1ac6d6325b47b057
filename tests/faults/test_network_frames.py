"""Frames that no client would send get an answer or a closed connection, and do not affect other clients (faults F14
and F16 of docs/internals/faults.md)."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION

MAX_REQUEST_BYTES = 1_000_000
FUZZ_CASES = 3_000
SEED = 20_261_121


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    directory: Path = tmp_path_factory.mktemp("network-frames")
    overrides = {"socket.request.max.bytes": str(MAX_REQUEST_BYTES)}
    with TidelogProcess(directory, overrides) as process:
        yield process
        with raw_client.connect(process.port) as connection:
            connection.sendall(raw_client.api_versions())
            assert raw_client.receive_frame(connection)
        assert "Traceback" not in process.output()


def resident_bytes(broker: TidelogProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, MAX_REQUEST_BYTES + 1, 0, 3])
def test_a_length_no_request_has_closes_the_connection(broker: TidelogProcess, length: int) -> None:
    with raw_client.connect(broker.port) as connection:
        connection.sendall(struct.pack(">i", length) + b"\0" * 8)
        assert raw_client.is_closed(connection)


def test_a_request_split_at_every_byte_is_answered(broker: TidelogProcess) -> None:
    with raw_client.connect(broker.port) as connection:
        whole = raw_client.api_versions(1)
        for cut in range(1, len(whole)):
            connection.sendall(whole[:cut])
            connection.sendall(whole[cut:])
            assert struct.unpack(">i", raw_client.receive_frame(connection)[:4]) == (1,)


def test_a_thousand_pipelined_requests_are_answered_in_order(broker: TidelogProcess) -> None:
    with raw_client.connect(broker.port) as connection:
        connection.sendall(b"".join(raw_client.api_versions(number) for number in range(1000)))
        answers = [raw_client.receive_frame(connection) for _ in range(1000)]
    assert [struct.unpack(">i", answer[:4])[0] for answer in answers] == list(range(1000))


def test_claimed_lengths_cost_no_memory(broker: TidelogProcess) -> None:
    before = resident_bytes(broker)
    connections = [raw_client.connect(broker.port) for _ in range(200)]
    try:
        for connection in connections:
            connection.sendall(struct.pack(">i", MAX_REQUEST_BYTES) + b"\0" * 100)
        with raw_client.connect(broker.port) as connection:
            connection.sendall(raw_client.api_versions())
            raw_client.receive_frame(connection)
        assert resident_bytes(broker) - before < 200 * 20_000
    finally:
        for connection in connections:
            connection.close()


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker: TidelogProcess) -> None:
    with raw_client.connect(broker.port) as connection:
        connection.sendall(raw_client.frame(18, 99, 5, b"\1\1\0", flexible=True))
        correlation_id, error, count = struct.unpack(">ihi", raw_client.receive_frame(connection)[:10])
        assert (correlation_id, error, count) == (5, 35, len(REGISTRY))
        connection.sendall(raw_client.api_versions(6))
        assert raw_client.receive_frame(connection)


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (-1, 0), (0, 99), (1, -1), (3, 14)])
def test_an_unknown_api_or_version_closes_the_connection(broker: TidelogProcess, api_key: int, version: int) -> None:
    with raw_client.connect(broker.port) as connection:
        connection.sendall(raw_client.frame(api_key, version, 1, b"\0" * 30))
        assert raw_client.is_closed(connection)


def test_random_bodies_of_every_api_raise_no_unexpected_error(broker: TidelogProcess) -> None:
    choose = random.Random(SEED)
    keys = sorted(key for key in REGISTRY if key not in (19, 20))
    for _ in range(FUZZ_CASES):
        key = choose.choice(keys)
        version = choose.randint(REGISTRY[key].min_version, REGISTRY[key].max_version)
        body = choose.randbytes(choose.choice([0, 1, 7, 40, 200]))
        with raw_client.connect(broker.port) as connection:
            connection.sendall(raw_client.frame(key, version, 1, body, flexible=version >= FIRST_FLEXIBLE_VERSION[key]))
            connection.shutdown(1)
            connection.recv(64)


@pytest.mark.parametrize("count", [-2, 2**31 - 1])
def test_impossible_array_lengths_close_the_connection(broker: TidelogProcess, count: int) -> None:
    with raw_client.connect(broker.port) as connection:
        connection.sendall(raw_client.frame(3, 1, 1, struct.pack(">i", count)))
        assert raw_client.is_closed(connection)


def test_mutated_produce_requests_are_answered_or_closed(broker: TidelogProcess) -> None:
    choose = random.Random(SEED)
    with raw_client.connect(broker.port) as connection:
        connection.sendall(raw_client.frame(3, 1, 1, struct.pack(">ih", 1, 4) + b"fuzz"))
        raw_client.receive_frame(connection)
    whole = raw_client.produce("fuzz", b"value" * 20)
    for _ in range(500):
        mutated = bytearray(whole)
        for _ in range(choose.randint(1, 4)):
            mutated[choose.randrange(12, len(mutated))] = choose.randrange(256)
        with raw_client.connect(broker.port) as connection:
            connection.sendall(mutated)
            connection.shutdown(1)
            connection.recv(4096)
