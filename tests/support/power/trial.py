"""Crashes of one recorded workload: for each, the crashed disk is written, and a broker is started on it and checked.

Brokers are started in this process, with the ``Server`` that ``tidelog serve`` runs; with ``in_process=False`` by the
command.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from tests.support.broker import BrokerError, TidelogProcess
from tests.support.power.crash import Crash, draw, smaller
from tests.support.power.disk import Disk
from tests.support.power.recording import RecordedBroker
from tests.support.power.story import Story
from tests.support.power.trace import Step, read_trace
from tests.support.power.verdict import Find, examine
from tests.support.power.workloads import DURABLE, SMALL, Workload
from tidelog.broker import server
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.find.finding import FindRequest, plan
from tidelog.client import ClientError
from tidelog.log.find.lookup import Query
from tidelog.protocol.errors import KafkaError

AT_REST = {"log.retention.check.interval.ms": "3600000"}
"""Settings with which retention deletes nothing during the checks."""


class ServerHere:
    """A broker in a thread of this process."""

    def __init__(self, settings: Mapping[str, str], directory: Path) -> None:
        texts = {**settings, "log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
        self._config = BrokerConfig(texts)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.port = 0

    def __enter__(self) -> ServerHere:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise AssertionError(f"the broker does not start: {self._failure!r}") from self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise AssertionError(f"the broker does not stop: {self._failure!r}") from self._failure

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._server = server.Server(self._config)
        try:
            self.port = (await self._server.start())[0].port
            self._started.set()
            await self._stop.wait()
            await self._server.stop()
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            self._failure = error
            self._started.set()

    def find(self, topic: str, key: bytes | None, tag: bytes | None) -> list[int]:
        """Return the offsets of records with a key or tag according to the indices, once they have caught up."""

        async def ask() -> list[int]:
            request = FindRequest(topic=topic, query=Query(key=key, tag=tag), wait=True)
            answer = plan(self._server.broker, request)
            return await self._loop.run_in_executor(None, lambda: [found.record.offset for found in answer])

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()


@dataclass
class Recorded:
    """The recorded trace of a workload, which yields crashed disks and checks them."""

    workload: Workload
    settings: dict[str, str]
    steps: list[Step]
    scratch: Path

    def disks(self, points: list[int]) -> Iterator[tuple[int, Disk, Story]]:
        """Yield the model and the story at each of these ascending points; they are valid until the next point."""
        disk, story, position = Disk(), Story(), 0
        for point in points:
            for step in self.steps[position:point]:
                if step.operation == "N":
                    story.take(step.note)
                else:
                    disk.step(step)
            position = point
            yield point, disk, story

    def draw(self, count: int, seed: int) -> Iterator[tuple[Crash, Disk, Story]]:
        """Yield ``count`` crashes at random points."""
        chance = random.Random(f"{self.workload.name}/{seed}")
        points = sorted(chance.randrange(1, len(self.steps) + 1) for _ in range(count))
        for point, disk, story in self.disks(points):
            yield draw(disk, point, chance, loose=self.workload.loose), disk, story

    def killed(self, writes: Callable[[Step], bool], limit: int, seed: int) -> Iterator[tuple[Crash, Disk, Story]]:
        """Yield the disks after a kill of the process just after a step for which ``writes`` is true; at most ``limit``
        disks.
        """
        points = [number for number, step in enumerate(self.steps, 1) if step.operation != "N" and writes(step)]
        assert points, "there is no such step"
        chosen = sorted(random.Random(seed).sample(points, min(limit, len(points))))
        for point, disk, story in self.disks(chosen):
            yield Crash(point, ordered=True, losses=()), disk, story

    def first_failure_of(self, crashes: Iterator[tuple[Crash, Disk, Story]]) -> str | None:
        """Describe the first of these crashes after which a check fails; None if none fails."""
        for crash, disk, story in crashes:
            if (failure := self.failure(crash, disk, story)) is not None:
                return f"{self.workload.name}: {failure}\n{crash.describe(disk)}"
        return None

    def forgetting(self, forgets: Callable[[Step], bool]) -> Recorded:
        """Return a copy without the syncs for which ``forgets`` is true, for checks that the tests find such a bug."""
        steps = [step for step in self.steps if not (step.operation in "SD" and forgets(step))]
        assert len(steps) < len(self.steps), "there is no such sync"
        return replace(self, steps=steps)

    def first_failure(self, count: int, seed: int, *, in_process: bool = True) -> str | None:
        """Describe the first of ``count`` crashes after which a check fails, shrunk; None if none fails."""
        for crash, disk, story in self.draw(count, seed):
            if self.failure(crash, disk, story, in_process=in_process) is not None:
                return self.explain(crash, disk, story, in_process=in_process)
        return None

    def failure(self, crash: Crash, disk: Disk, story: Story, *, in_process: bool = True) -> str | None:
        """Start a broker on a crashed disk and check it; returns the failure, None if there is none."""
        root = self.scratch / "crashed"
        shutil.rmtree(root, ignore_errors=True)
        crash.write(disk, root)
        start = started_here if in_process else started_apart
        try:
            with start({**self.settings, **AT_REST}, root / "data", self.scratch) as (port, find):
                examine(port, story, self.settings, ordered=crash.ordered, find=find)
        except (AssertionError, ClientError, BrokerError, KafkaError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def explain(self, crash: Crash, disk: Disk, story: Story, *, in_process: bool = True) -> str:
        """Describe the failure after a crash, which is shrunk before."""

        def fails(candidate: Crash) -> bool:
            return self.failure(candidate, disk, story, in_process=in_process) is not None

        crash = smaller(crash, fails)
        what = self.failure(crash, disk, story, in_process=in_process)
        return f"{self.workload.name}: {what}\n{crash.describe(disk)}"


@contextmanager
def started_here(settings: Mapping[str, str], directory: Path, _: Path) -> Iterator[tuple[int, Find | None]]:
    """A broker in this process: its port, and its function for look-ups in indices."""
    # Indices and the cleaner begin at once, not some time after the start as usual.
    with mock.patch.object(server, "START_DELAY_S", 0), ServerHere(settings, directory) as here:
        yield here.port, here.find


@contextmanager
def started_apart(settings: Mapping[str, str], directory: Path, scratch: Path) -> Iterator[tuple[int, Find | None]]:
    """A broker by ``tidelog serve``: its port; it has no function for look-ups."""
    broker = TidelogProcess(scratch / "process", settings)
    broker.data_directory = directory
    with broker:
        yield broker.port, None
        broker.terminate()


def record(workload: Workload, directory: Path, *, durable: bool) -> Recorded:
    """Run a workload under the recorder."""
    settings = {**SMALL, **workload.overrides, **(DURABLE if durable else {})}
    broker = RecordedBroker(directory, settings)
    try:
        workload.run(broker)
    finally:
        broker.kill()
    steps = read_trace(broker.trace, broker.root)
    shutil.rmtree(broker.root)
    return Recorded(workload, settings, steps, directory)
