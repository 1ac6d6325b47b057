"""Requests for many partitions, split into requests for few, which a coordinator decides and stores at once.

A commit of 20,000 partitions is one record each, built, checked, appended and replayed at about 10 µs: at once it would
hold the loop for 200 ms. Each partition is committed by itself, so some of them may be committed before others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.protocol.schema.copies import with_fields

CHUNK = 64
"""Partitions that are committed at once."""


def chunks_of(topics: list[Any]) -> Iterator[list[Any]]:
    """Yield the topics of a request as lists of topics with at most CHUNK partitions in all; a long topic comes in
    parts.

    A topic without partitions counts as one. A short request is one chunk: the given list.
    """
    if sum(max(len(topic.partitions), 1) for topic in topics) <= CHUNK:
        yield topics
        return
    chunk: list[Any] = []
    room = CHUNK
    for topic in topics:
        for first in range(0, max(len(topic.partitions), 1), CHUNK):
            part = with_fields(topic, partitions=topic.partitions[first : first + CHUNK])
            size = max(len(part.partitions), 1)
            if size > room:
                yield chunk
                chunk, room = [], CHUNK
            chunk.append(part)
            room -= size
    yield chunk
