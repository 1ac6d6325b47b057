"""The response of a produce request that was appended as a whole has the bytes that the compiled encoder gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.requests.appended_response import FIRST_VERSION, encode_appended
from tidelog.log.unified_log import LogAppendInfo
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

VERSIONS = range(FIRST_VERSION, ProduceResponse.VERSIONS.highest + 1)
INT64 = st.integers(-1, 2**63 - 1)
INFOS = st.builds(
    LogAppendInfo, first_offset=INT64, last_offset=INT64, max_timestamp=INT64, log_append_time=INT64,
    log_start_offset=INT64, duplicate=st.booleans(), size_bytes=st.integers(0, 2**31 - 1),
)  # fmt: skip
PARTITIONS = st.lists(st.tuples(st.integers(0, 2**31 - 1), INFOS), max_size=4)
TOPICS = st.lists(st.tuples(st.text(max_size=9), st.binary(min_size=16, max_size=16), PARTITIONS), max_size=3)

Topics = list[tuple[str, bytes, list[tuple[int, LogAppendInfo]]]]


def check(topics: Topics, version: int) -> None:
    """Compare the two."""
    requested = [
        TopicProduceData(name=name, topic_id=number, partition_data=[PartitionProduceData(index=i) for i, _ in found])
        for name, number, found in topics
    ]
    expected = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=number,
                partition_responses=[
                    PartitionProduceResponse(
                        index=index,
                        base_offset=info.first_offset,
                        log_append_time_ms=info.log_append_time,
                        log_start_offset=info.log_start_offset,
                    )
                    for index, info in found
                ],
            )
            for name, number, found in topics
        ]
    )
    infos = [info for _, _, found in topics for _, info in found]
    assert encode_appended(requested, infos, version) == expected.encode(version)


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=TOPICS)
def test_it_is_what_the_encoder_gives(version: int, topics: Topics) -> None:
    check(topics, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_so_are_long_names_and_many_partitions(version: int) -> None:
    info = LogAppendInfo(7, 9, 1, -1, 3, duplicate=False, size_bytes=100)
    check([("n" * 249, bytes(16), [(index, info) for index in range(300)])] * 130, version)
