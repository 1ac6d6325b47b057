from __future__ import annotations

from tidelog.broker.loop.garbage import (
    COMPLETE_MS,
    INTERVAL_MS,
    LONG_MS,
    MANY_OBJECTS,
    MAX_DELAYS,
    WORTH_COLLECTING,
    Collector,
    GarbageCollector,
)


class World:
    """A collector whose collections take ``takes_ms``; ``events`` are what it did, in order."""

    def __init__(self) -> None:
        self.is_busy = False
        self.young = 0
        self.now_ms = 0.0
        self.takes_ms = 0.0
        self.events: list[str] = []
        collector = Collector(
            self.collect,
            self.freeze,
            lambda: self.events.append("unfreeze"),
            lambda: self.young,
            lambda: self.now_ms,
        )
        self.collector = GarbageCollector(lambda: self.is_busy, collector)

    def collect(self) -> None:
        self.events.append("collect")
        self.now_ms += self.takes_ms
        self.young = 0

    def freeze(self) -> None:
        self.events.append("freeze")
        self.young = 0

    def run(self, young: int) -> list[str]:
        """Run the job once after a number of small collections; return what it did."""
        self.young = young
        del self.events[:]
        self.collector.run()
        return list(self.events)


def test_a_full_collection_comes_when_it_is_worth_it() -> None:
    world = World()
    assert world.run(0) == []
    assert world.run(WORTH_COLLECTING - 1) == []
    assert world.run(WORTH_COLLECTING) == ["collect"]


def test_a_long_request_delays_it_but_not_for_ever() -> None:
    world = World()
    world.is_busy = True
    assert [world.run(WORTH_COLLECTING) for _ in range(MAX_DELAYS)] == [[]] * MAX_DELAYS
    world.is_busy = False
    assert world.run(WORTH_COLLECTING) == ["collect"]
    world.is_busy = True
    assert [world.run(WORTH_COLLECTING) for _ in range(MAX_DELAYS + 1)] == [[]] * MAX_DELAYS + [["collect"]]


def test_many_objects_of_a_long_request_are_frozen_and_not_looked_at() -> None:
    world = World()
    world.is_busy = True
    assert world.run(MANY_OBJECTS - 1) == []
    assert world.run(MANY_OBJECTS) == ["freeze"]


def test_objects_frozen_after_a_long_collection_are_collected_an_hour_later() -> None:
    world = World()
    world.takes_ms = LONG_MS - 1
    assert world.run(WORTH_COLLECTING) == ["collect"]
    world.takes_ms = LONG_MS
    assert world.run(WORTH_COLLECTING) == ["collect", "freeze"]
    world.takes_ms = 1
    assert world.run(WORTH_COLLECTING) == ["collect"]
    world.now_ms += COMPLETE_MS
    assert world.run(WORTH_COLLECTING) == ["unfreeze", "collect"]
    world.now_ms += COMPLETE_MS
    assert world.run(WORTH_COLLECTING) == ["collect"], "nothing was frozen since"


def test_frozen_objects_are_looked_at_again_where_no_work_follows() -> None:
    world = World()
    world.is_busy = True
    assert world.run(MANY_OBJECTS) == ["freeze"]
    world.is_busy = False
    assert world.run(0) == []
    world.now_ms += COMPLETE_MS
    assert world.run(0) == ["unfreeze", "collect"]
    world.now_ms += COMPLETE_MS
    assert world.run(0) == [], "nothing is frozen"


def test_the_collector_is_a_background_job() -> None:
    world = World()
    world.young = WORTH_COLLECTING
    job = world.collector.job()
    assert (job.name, job.interval_ms) == ("garbage", INTERVAL_MS)
    job.run()
    assert world.events == ["collect"]


def test_the_collector_collects_cycles() -> None:
    import gc

    collector = Collector(young_collections=lambda: WORTH_COLLECTING, freeze=lambda: None)
    GarbageCollector(lambda: False, collector).run()
    assert gc.get_count()[2] == 0
