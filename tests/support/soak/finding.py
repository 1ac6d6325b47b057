"""A party of the soak that writes a topic and looks up its records by key and by tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.soak.party import World
from tests.support.soak.reading import Found, numbers_of, read_all, value_of
from tests.support.soak.writers import PlainWriter
from tidelog import Tidelog
from tidelog.client import ClientError

TAGS = (b"paid", b"open", b"sent")


class Finder(PlainWriter):
    """Writes keyed and tagged records. A look-up finds every record acknowledged before it, and none with another key.

    At the end, look-ups give the same records as a scan of the topic.
    """

    keys = 200
    max_records = 4
    pause_s = 0.1

    def __init__(self, world: World, topic: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, topic, {**configs, "index.keys": "true", "index.tag.header": "kind"})

    def send(self, number: int) -> None:
        self.put(number, self.key_of(number), value_of(number), [("kind", TAGS[number % 3])])

    def turn(self) -> None:
        super().turn()
        if self.chance.random() < 0.2:
            self._find()

    def _find(self) -> None:
        key = b"k%d" % self.chance.randrange(self.keys)
        before = {number for number in self.ledger.acknowledged.values() if self.key_of(number) == key}
        try:
            found = list(Tidelog(self.world.bootstrap).find(self.ledger.topic, key=key))
        except (ClientError, OSError) as error:
            self.counts[f"got {type(error).__name__}"] += 1
            return
        self.counts["look-ups"] += 1
        self._compare(f"key {key!r}", before, found, key)

    def _compare(self, asked: str, before: set[int], found: list[Any], key: bytes) -> None:
        numbers = numbers_of(record.value for record in found)
        if missing := before.difference(numbers):
            self.faults.append(f"{self.ledger.topic}, {asked}: {sorted(missing)[:10]} were acknowledged and not found")
        wrong = [r for r, n in zip(found, numbers, strict=True) if r.key != key or r.value != value_of(n)]
        if wrong or len(numbers) != len(set(numbers)):
            self.faults.append(f"{self.ledger.topic}, {asked}: found twice or wrong: {numbers[:20]} {wrong[:3]}")

    def check(self) -> None:
        super().check()
        scan = read_all(self.world.bootstrap, self.ledger.topic)
        client = Tidelog(self.world.bootstrap)
        for number in self.chance.sample(range(self.keys), 20):
            key = b"k%d" % number
            self._same(f"key {key!r}", list(client.find(self.ledger.topic, key=key)), scan, key=key)
        for tag in TAGS:
            self._same(f"tag {tag!r}", list(client.find(self.ledger.topic, tag=tag)), scan, tag=tag)

    def _same(
        self, asked: str, found: list[Any], scan: Mapping[Any, Found], *, key: bytes = b"", tag: bytes = b""
    ) -> None:
        got = {(record.partition, record.offset) for record in found}
        wanted = {
            position
            for position, read in scan.items()
            if (not key or read.key == key) and (not tag or TAGS[numbers_of([read.value])[0] % 3] == tag)
        }
        if got != wanted or len(got) != len(found):
            self.faults.append(f"{self.ledger.topic}, {asked}: missing {wanted - got}, too many {got - wanted}"[:400])
