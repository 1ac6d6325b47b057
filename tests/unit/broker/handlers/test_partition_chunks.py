from __future__ import annotations

import random

from tidelog.broker.handlers.partition_chunks import CHUNK, chunks_of
from tidelog.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic


def topics_of(counts: list[int]) -> list[OffsetCommitRequestTopic]:
    return [
        OffsetCommitRequestTopic(
            name=f"t{number}",
            topic_id=number.to_bytes(16, "big"),
            partitions=[OffsetCommitRequestPartition(partition_index=index) for index in range(count)],
        )
        for number, count in enumerate(counts)
    ]


def pairs(topics: list[OffsetCommitRequestTopic]) -> list[tuple[str, bytes, int]]:
    return [(topic.name, topic.topic_id, asked.partition_index) for topic in topics for asked in topic.partitions]


def test_a_short_request_is_one_chunk_of_its_very_topics() -> None:
    topics = topics_of([CHUNK - 2, 1, 0])
    (chunk,) = chunks_of(topics)
    assert chunk is topics
    assert list(chunks_of([])) == [[]]


def test_chunks_hold_every_partition_once_in_order_and_none_is_too_long() -> None:
    choose = random.Random(4)
    for _ in range(50):
        topics = topics_of([choose.choice([0, 1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 1000]) for _ in range(12)])
        chunks = list(chunks_of(topics))
        assert [pair for chunk in chunks for pair in pairs(chunk)] == pairs(topics)
        assert all(sum(max(len(topic.partitions), 1) for topic in chunk) <= CHUNK for chunk in chunks)
        assert {topic.name for chunk in chunks for topic in chunk} == {topic.name for topic in topics}
