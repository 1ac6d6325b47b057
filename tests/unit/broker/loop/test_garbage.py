from __future__ import annotations

from tidelog.broker.loop.garbage import INTERVAL_MS, MOST_DELAYS, WORTH_COLLECTING, GarbageCollector


class World:
    def __init__(self) -> None:
        self.is_busy = False
        self.young = 0
        self.full = 0
        self.collector = GarbageCollector(
            lambda: self.is_busy, collect=self.collect, young_collections=lambda: self.young
        )

    def collect(self) -> None:
        self.full += 1
        self.young = 0


def test_a_full_collection_comes_when_it_is_worth_it() -> None:
    world = World()
    world.collector.run()
    world.young = WORTH_COLLECTING - 1
    world.collector.run()
    assert world.full == 0
    world.young = WORTH_COLLECTING
    world.collector.run()
    world.collector.run()
    assert world.full == 1


def test_a_long_request_delays_it_but_not_for_ever() -> None:
    world = World()
    world.is_busy, world.young = True, WORTH_COLLECTING
    for _ in range(MOST_DELAYS):
        world.collector.run()
    assert world.full == 0
    world.is_busy = False
    world.collector.run()
    assert world.full == 1
    world.is_busy, world.young = True, WORTH_COLLECTING
    for _ in range(MOST_DELAYS + 1):
        world.collector.run()
    assert world.full == 2


def test_it_is_a_background_job() -> None:
    world = World()
    world.young = WORTH_COLLECTING
    job = world.collector.job()
    assert (job.name, job.interval_ms) == ("garbage", INTERVAL_MS)
    job.run()
    assert world.full == 1


def test_it_collects_cycles() -> None:
    import gc

    GarbageCollector(lambda: False, young_collections=lambda: WORTH_COLLECTING).run()
    assert gc.get_count()[2] == 0
