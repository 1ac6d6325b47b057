"""Chunks of a request for many partitions, each small enough for a coordinator to store in one turn of the loop.

A commit of 20,000 partitions has a record for each, which takes about 10 µs: in one turn, the commit would block the
loop for 200 ms. Each partition's offset is committed by itself, so some may be committed before others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.protocol.schema.copies import with_fields

CHUNK = 64
"""Largest number of partitions in one chunk."""


def chunks_of(topics: list[Any]) -> Iterator[list[Any]]:
    """Yield the topics of a request in lists of at most CHUNK partitions each; a longer topic is split.

    A topic without partitions counts as one partition. A short request is one chunk: the given list.
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
