"""Functions that create and delete topics in tests which have a broker's parts and no server.

They call the code that CreateTopics and DeleteTopics call. The loop's turns and the jobs of worker threads run within
the call, so the change is finished when the function returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidelog.broker.controller.topic_changes import USE_DEFAULT, Change, NewTopic
from tidelog.broker.controller.topics import TopicManager
from tidelog.broker.metadata.image import TopicImage

MAX_TURNS = 100
"""Limit of the loop's turns for one change of a topic; a change that ends takes fewer."""


class Parts(Protocol):
    """The parts of a broker that a change of topics needs."""

    topics: TopicManager

    def run_turn(self) -> None:
        """Run the callbacks that wait for the loop's next turn."""


def create_topic(
    parts: Parts,
    name: str,
    partitions: int = USE_DEFAULT,
    replication_factor: int = USE_DEFAULT,
    configs: Mapping[str, str] | None = None,
    *,
    validate_only: bool = False,
) -> TopicImage:
    """Create a topic and return its image; with ``validate_only`` nothing is created.

    Raises the error that CreateTopics would answer.
    """
    new = NewTopic(name, partitions, replication_factor, configs, validate_only)
    return _finish(parts, parts.topics.changes.create(new))


def delete_topic(parts: Parts, name: str) -> TopicImage:
    """Delete a topic and its logs; return its last image. Raises the error that DeleteTopics would answer."""
    return _finish(parts, parts.topics.changes.delete(name))


def _finish(parts: Parts, change: Change) -> TopicImage:
    """Run the loop's turns until the change is finished, MAX_TURNS at most, and return its result."""
    for _ in range(MAX_TURNS):
        if change.done.done:
            break
        parts.run_turn()
    return change.done.result()
