"""Topics of tests that have a broker's parts and no server: created and deleted by the code that admin requests call.

The test runs the threads' work and the loop's turns of such parts itself, so every step is done when the call returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidelog.broker.controller.topic_changes import USE_DEFAULT, Change, NewTopic
from tidelog.broker.controller.topics import TopicManager
from tidelog.broker.metadata.image import TopicImage

MOST_TURNS = 100
"""More turns of the loop than a change of a topic takes."""


class Parts(Protocol):
    """A broker's parts without a server."""

    topics: TopicManager

    def run_turn(self) -> None:
        """Run what waits for the loop's next turn."""


def create_topic(
    parts: Parts,
    name: str,
    partitions: int = USE_DEFAULT,
    replication_factor: int = USE_DEFAULT,
    configs: Mapping[str, str] | None = None,
    *,
    validate_only: bool = False,
) -> TopicImage:
    """Create a topic, or with ``validate_only`` only return it. Raises the error that CreateTopics would answer."""
    new = NewTopic(name, partitions, replication_factor, configs, validate_only)
    return _finish(parts, parts.topics.changes.create(new))


def delete_topic(parts: Parts, name: str) -> TopicImage:
    """Delete a topic and its logs. Raises the error that DeleteTopics would answer."""
    return _finish(parts, parts.topics.changes.delete(name))


def _finish(parts: Parts, change: Change) -> TopicImage:
    """Run the loop's turns until the change is done."""
    for _ in range(MOST_TURNS):
        if change.done.done:
            break
        parts.run_turn()
    return change.done.result()
