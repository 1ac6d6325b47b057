"""Acknowledgements of one topic, and the comparison with what is read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tests.support.readers import Place
from tests.support.soak.reading import Found, numbers_of, value_of


class Ledger:
    """Numbers that were sent to a topic; each is acknowledged at one place, or its fate is unknown."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: dict[Place, int] = {}

    def acknowledge(self, place: Place, number: int) -> str | None:
        """Note an acknowledgement; return a fault if another record has the place already."""
        if self.acknowledged.setdefault(place, number) != number:
            return f"{self.at(place)} was acknowledged for {self.acknowledged[place]} and for {number}"
        return None

    def at(self, place: Place) -> str:
        """Return a place as TOPIC-PARTITION@OFFSET, for a fault's text."""
        return f"{self.topic}-{place[0]}@{place[1]}"

    def missing(self, found: Mapping[Place, Found]) -> Iterator[str]:
        """Yield acknowledged records that are not read at their offset."""
        for place, number in self.acknowledged.items():
            read = found.get(place)
            if read is None:
                yield f"{self.at(place)}: {number} was acknowledged, nothing is read there"
            elif read.value != value_of(number):
                yield f"{self.at(place)}: {number} was acknowledged, {read.value!r:.40} is read there"

    def gaps(self, found: Mapping[Place, Found]) -> Iterator[str]:
        """Yield offsets without a record, in a topic that has no markers and is not compacted."""
        counts = Counter(partition for partition, _ in found)
        for partition, count in sorted(counts.items()):
            offsets = {offset for number, offset in found if number == partition}
            if offsets != set(range(count)):
                left_out = sorted(set(range(max(offsets))) - offsets)
                yield f"{self.topic}-{partition}: offsets {left_out[:10]} are left out"

    def repetitions(self, found: Mapping[Place, Found]) -> Iterator[str]:
        """Yield numbers that an idempotent producer sent once and that are read more often, or were not sent."""
        for number, count in Counter(numbers_of(read.value for read in found.values())).items():
            if count > 1:
                places = [self.at(place) for place, read in found.items() if read.value == value_of(number)]
                yield f"{number} was sent once and is read {count} times: {places}"
            if number >= self.sent:
                yield f"{number} was never sent to {self.topic}"
