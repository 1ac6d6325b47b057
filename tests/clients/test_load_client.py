"""The C programs of the benchmarks: they compile, and send and count correctly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.native import LoadError, compile_executable, parse_load_result, run_load
from benchmarks.rivals.floor import Floor
from benchmarks.rivals.kafka_jars import MissingToolError
from benchmarks.rivals.process import free_port
from tests.support.requirements import missing
from tidelog.protocol.record.batches import iter_batches


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[Floor]:
    try:
        compile_executable("loadgen")
    except MissingToolError as error:
        missing(error.tool, error.install)
    with Floor(tmp_path) as process:
        yield process


def test_batches_have_a_right_crc_and_growing_offsets(floor: Floor) -> None:
    run_load("produce", floor.host, floor.port, records=30, value_bytes=1000, requests=3, window=2)
    batches = list(iter_batches((floor.directory / "records").read_bytes()))
    assert [batch.base_offset for batch in batches] == [0, 30, 60]
    for batch in batches:
        batch.ensure_valid()
        assert batch.record_count == 30


def test_fetch_reads_all_produced_records(floor: Floor) -> None:
    run_load("produce", floor.host, floor.port, records=30, value_bytes=1000, requests=20, window=5)
    done = run_load("fetch", floor.host, floor.port, total_bytes=600_000)
    assert done.records == 600
    assert done.payload_bytes == 600_000


def test_every_request_is_timed(floor: Floor) -> None:
    done = run_load("produce", floor.host, floor.port, requests=100, value_bytes=10, window=7)
    assert done.latency.count == done.requests == 100


def test_paced_load_sends_all_intended_requests(floor: Floor) -> None:
    done = run_load("paced", floor.host, floor.port, rate=1000, seconds=0.2, value_bytes=10)
    assert done.intended == done.completed == done.latency.count == 200


def test_closed_port_is_a_load_error() -> None:
    with pytest.raises(LoadError, match="connect"):
        run_load("produce", "127.0.0.1", free_port())


def test_fields_a_mode_does_not_know_are_zero() -> None:
    found = parse_load_result({"seconds": 1.0, "client_user_s": 0.5, "client_system_s": 0.25, "latency": [[3, 2]]})
    assert (found.client_cpu_s, found.requests, found.latency.count) == (0.75, 0, 2)


def test_program_is_compiled_once() -> None:
    try:
        first = compile_executable("floor")
    except MissingToolError as error:
        missing(error.tool, error.install)
    changed = first.stat().st_mtime_ns
    assert Path(compile_executable("floor")).stat().st_mtime_ns == changed
