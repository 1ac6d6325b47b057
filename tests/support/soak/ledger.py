"""Acknowledgements of one topic, and the comparison with what is read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tests.support.readers import Position
from tests.support.soak.reading import Found, numbers_of, value_of


class Ledger:
    """The numbers sent to a topic, and the position of each that was acknowledged.

    ``sent`` is their count: they begin at 0. A number without an acknowledgement may be in the topic, or not.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: dict[Position, int] = {}

    def acknowledge(self, position: Position, number: int) -> str | None:
        """Note an acknowledgement; return a fault if another number was acknowledged at the same position."""
        if self.acknowledged.setdefault(position, number) != number:
            return f"{self.position_text(position)} was acknowledged for {self.acknowledged[position]} and for {number}"
        return None

    def position_text(self, position: Position) -> str:
        """Return a position as TOPIC-PARTITION@OFFSET, for a fault's text."""
        return f"{self.topic}-{position[0]}@{position[1]}"

    def missing(self, found: Mapping[Position, Found]) -> Iterator[str]:
        """Yield a fault for each acknowledged number that is not read at its position."""
        for position, number in self.acknowledged.items():
            read = found.get(position)
            if read is None:
                yield f"{self.position_text(position)}: {number} was acknowledged, nothing is read there"
            elif read.value != value_of(number):
                yield f"{self.position_text(position)}: {number} was acknowledged, {read.value!r:.40} is read there"

    def gaps(self, found: Mapping[Position, Found]) -> Iterator[str]:
        """Yield a fault for each partition with offsets that no record has. No markers, no compaction in the topic."""
        counts = Counter(partition for partition, _ in found)
        for partition, count in sorted(counts.items()):
            offsets = {offset for number, offset in found if number == partition}
            if offsets != set(range(count)):
                left_out = sorted(set(range(max(offsets))) - offsets)
                yield f"{self.topic}-{partition}: offsets {left_out[:10]} are left out"

    def repetitions(self, found: Mapping[Position, Found]) -> Iterator[str]:
        """Yield a fault for each number that is read twice or more, and for each that was never sent.

        Right for idempotent producers only: a retry of another producer may write a number twice.
        """
        for number, count in Counter(numbers_of(read.value for read in found.values())).items():
            if count > 1:
                positions = [
                    self.position_text(position) for position, read in found.items() if read.value == value_of(number)
                ]
                yield f"{number} was sent once and is read {count} times: {positions}"
            if number >= self.sent:
                yield f"{number} was never sent to {self.topic}"
