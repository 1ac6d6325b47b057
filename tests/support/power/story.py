"""A client's requests and acknowledgements, up to a point of a trace.

The effects of acknowledged requests must survive a power loss at that point. Effects of other requests may survive, but
completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tests.support.power.trace import Step

T = TypeVar("T")
Pair = tuple[str | None, str]
"""Key and value of a record."""


@dataclass
class Batch:
    """The records of one produce request; ``offset`` is None until the request is acknowledged."""

    records: list[Pair]
    producer: tuple[int, int, int]
    transaction: int
    offset: int | None = None


@dataclass
class TopicStory:
    """A topic since its last creation. ``is_there`` is None while a creation or deletion is not acknowledged."""

    name: str
    is_there: bool | None = None
    topic_id: bytes | None = None
    partitions: set[int] = field(default_factory=set)
    configs: dict[str, str] = field(default_factory=dict)
    batches: dict[int, list[Batch]] = field(default_factory=dict)
    deleted_before: int = 0
    """The largest offset of a DeleteRecords request; acknowledged or not."""


@dataclass
class Setting(Generic[T]):
    """A value that is set again and again: the last acknowledged value, the values requested since, and all of them."""

    acknowledged: T | None = None
    asked: list[T] = field(default_factory=list)
    ever: set[T] = field(default_factory=set)

    def ask(self, value: T) -> None:
        self.asked.append(value)
        self.ever.add(value)

    def acknowledge(self, value: T) -> None:
        del self.asked[: self.asked.index(value) + 1]
        self.acknowledged = value

    def allows(self, value: T | None) -> bool:
        """Return whether a broker that has lost no acknowledged value may return this value."""
        return value == self.acknowledged or value in self.asked


@dataclass
class Story:
    """The state that must survive a power loss, and the changes that may, according to the notes so far."""

    topics: dict[str, TopicStory] = field(default_factory=dict)
    configs: dict[tuple[str, str], Setting[str]] = field(default_factory=dict)
    quotas: dict[str, Setting[float]] = field(default_factory=dict)
    credentials: dict[str, Setting[int]] = field(default_factory=dict)
    offsets: dict[tuple[str, str], Setting[int]] = field(default_factory=dict)
    shares: dict[tuple[str, str], dict[int, tuple[int, bool]]] = field(default_factory=dict)
    """Share group and topic -> offset -> the kind of its last acknowledgement, and whether the broker answered it."""
    producer_ids: set[int] = field(default_factory=set)
    transactional_ids: set[str] = field(default_factory=set)
    ends: dict[int, tuple[bool, bool]] = field(default_factory=dict)
    """Transaction -> (whether it commits, whether its end is acknowledged), from the request of its end on."""
    _open: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, note: dict[str, Any]) -> None:
        """Apply the next note of the trace."""
        if "number" in note:
            self._open[note["number"]] = note
            getattr(self, "_ask_" + note["what"].replace(" ", "_"))(note)
        else:
            asked = self._open.pop(note["acknowledged"])
            getattr(self, "_ack_" + asked["what"].replace(" ", "_"))(asked, note)

    def _ask_create(self, note: dict[str, Any]) -> None:
        self.topics[note["topic"]] = TopicStory(note["topic"], partitions={note["partitions"]}, configs=note["configs"])

    def _ack_create(self, note: dict[str, Any], result: dict[str, Any]) -> None:
        topic = self.topics[note["topic"]]
        topic.is_there, topic.topic_id = True, bytes.fromhex(result["topic_id"])

    def _ask_widen(self, note: dict[str, Any]) -> None:
        self.topics[note["topic"]].partitions.add(note["partitions"])

    def _ack_widen(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        self.topics[note["topic"]].partitions = {note["partitions"]}

    def _ask_delete(self, note: dict[str, Any]) -> None:
        self.topics[note["topic"]].is_there = None

    def _ack_delete(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        self.topics[note["topic"]].is_there = False

    def _ask_produce(self, note: dict[str, Any]) -> None:
        note["batch"] = batch = Batch(
            [(key, value) for key, value in note["records"]], tuple(note["producer"]), note["transaction"]
        )
        self.topics[note["topic"]].batches.setdefault(note["partition"], []).append(batch)

    def _ack_produce(self, note: dict[str, Any], result: dict[str, Any]) -> None:
        note["batch"].offset = result["offset"]

    def _ask_delete_records(self, note: dict[str, Any]) -> None:
        self.topics[note["topic"]].deleted_before = note["before"]

    def _ack_delete_records(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        """Do nothing: after a power loss the log start may be that of the last checkpoint, as in Apache Kafka."""

    def _ask_configure(self, note: dict[str, Any]) -> None:
        self.configs.setdefault((note["topic"], note["name"]), Setting()).ask(note["value"])

    def _ack_configure(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        self.configs[note["topic"], note["name"]].acknowledge(note["value"])

    def _ask_quota(self, note: dict[str, Any]) -> None:
        self.quotas.setdefault(note["client"], Setting()).ask(note["value"])

    def _ack_quota(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        self.quotas[note["client"]].acknowledge(note["value"])

    def _ask_credential(self, note: dict[str, Any]) -> None:
        self.credentials.setdefault(note["user"], Setting()).ask(note["iterations"])

    def _ack_credential(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        self.credentials[note["user"]].acknowledge(note["iterations"])

    def _ask_commit(self, note: dict[str, Any]) -> None:
        self.offsets.setdefault((note["group"], note["topic"]), Setting()).ask(note["offset"])

    def _ack_commit(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        self.offsets[note["group"], note["topic"]].acknowledge(note["offset"])

    def _ask_share(self, note: dict[str, Any]) -> None:
        share = self.shares.setdefault((note["group"], note["topic"]), {})
        for offset in note["offsets"]:
            share[offset] = note["kind"], False

    def _ack_share(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        share = self.shares[note["group"], note["topic"]]
        for offset in note["offsets"]:
            share[offset] = note["kind"], True

    def _ask_producer(self, note: dict[str, Any]) -> None:
        if note["transactional_id"] is not None:
            self.transactional_ids.add(note["transactional_id"])

    def _ack_producer(self, note: dict[str, Any], result: dict[str, Any]) -> None:
        self.producer_ids.add(result["producer_id"])

    def _ask_end(self, note: dict[str, Any]) -> None:
        self.ends[note["transaction"]] = note["commit"], False

    def _ack_end(self, note: dict[str, Any], _: dict[str, Any]) -> None:
        self.ends[note["transaction"]] = note["commit"], True


def story_of(steps: Iterable[Step]) -> Story:
    """Build the story from the notes among a trace's records."""
    story = Story()
    for step in steps:
        if step.operation == "N":
            story.take(step.note)
    return story
