"""Kafka's default partitioner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support import build_reference
from tidelog.client.records.partitioner import murmur2, partition_for_key


def test_known_values_of_kafkas_own_test() -> None:
    """Keys and hashes of UtilsTest.testMurmur2, as signed numbers."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: murmur2(key) - (murmur2(key) >> 31 << 32) for key in known} == known


@given(st.binary(max_size=40), st.integers(1, 50))
def test_the_client_agrees_with_the_pipelines_partitioner(key: bytes, partitions: int) -> None:
    assert murmur2(key) == build_reference.murmur2(key) & 0xFFFFFFFF
    assert 0 <= partition_for_key(key, partitions) < partitions
