"""Offsets that ``tidelog consume --group`` commits, for each way in which it may end: only those of written lines."""

from __future__ import annotations

import errno
import io
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tests.support.model_brokers import PLACES, Log, ModelCluster
from tests.support.traced import traced
from tidelog.client.connection import ClientError
from tidelog.client.records import reading
from tidelog.client.records.reading import MemberReading, Range
from tidelog.commands.records import consume
from tidelog.commands.records.consume import ended_by_sigterm, show
from tidelog.find import FoundRecord
from tidelog.protocol.errors import TopicAuthorizationFailedError

WHOLE = Range("start", None, None, follow=False, isolation_level=0)
COUNT = 6
"""Records of each partition."""


class File(io.RawIOBase):
    """A file or pipe that takes ``room`` bytes, and then fails with ``error``."""

    def __init__(self, room: int, error: OSError) -> None:
        self.content = b""
        self._room = room
        self._error = error

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        taken = bytes(content[: self._room])
        if content and not taken:
            raise self._error
        self.content += taken
        self._room -= len(taken)
        return len(taken)

    def grow(self) -> None:
        self._room = 1 << 30


class Run:
    """A run of the command in a model cluster of two partitions: what it has printed and committed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int = 1 << 30, error: int = errno.ENOSPC) -> None:
        self.cluster = ModelCluster(full_log(), full_log())
        self.committed: dict[tuple[str, int], int] = {}
        self.has_left = False
        self._file = File(room, OSError(error, "full or closed"))
        self._stdout = io.TextIOWrapper(io.BufferedWriter(self._file, 20))
        monkeypatch.setattr(sys, "stdout", self._stdout)
        monkeypatch.setattr(reading, "GroupMember", self._member)
        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: None))

    def _member(self, cluster: ModelCluster, group: str, topics: tuple[str, ...], before_rejoin: Any) -> Member:
        return Member(self)

    def consume(self, at: int = -1, event: Callable[[], None] = lambda: None, max_records: int | None = None) -> None:
        """Consume; while the line of record ``at`` is formatted, ``event`` happens."""
        formatted = Counter[str]()

        def line(record: FoundRecord) -> bytes:
            if formatted.total() == at:
                event()
            formatted["lines"] += 1
            return b"%d" % record.partition

        with ended_by_sigterm(), MemberReading(self.cluster, "g", ("orders",), WHOLE, print) as member:
            show(member.records(), line, max_records, member.note_written)

    def printed(self) -> dict[tuple[str, int], int]:
        """Count the whole lines of each partition that the file has."""
        lines = self._file.content.split(b"\n")[:-1]
        return {("orders", int(number)): count for number, count in Counter(lines).items()}

    def close(self) -> None:
        """Close the output, which would otherwise fail when it is collected."""
        self._file.grow()
        self._stdout.close()


class Member:
    """A member of the group that gets all partitions."""

    def __init__(self, run: Run) -> None:
        self.assignment = list(run.cluster.logs)
        self._run = run
        self._is_new = True

    def poll(self) -> bool:
        was_new, self._is_new = self._is_new, False
        return was_new

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        self._run.committed.update(offsets)
        assert_written(self._run)

    def leave(self) -> None:
        self._run.has_left = True


def full_log() -> Log:
    log = Log()
    for number in range(COUNT // 2):
        log.append(b"%d" % number, b"again")
    return log


def assert_written(run: Run) -> None:
    """Check that the lines of all committed records are in the file."""
    printed = run.printed()
    assert {place: offset for place, offset in run.committed.items() if printed.get(place, 0) < offset} == {}


@pytest.fixture(params=[0.0, 100.0], ids=["committed after each round", "committed at the end"])
def begin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    monkeypatch.setattr(reading, "COMMIT_S", request.param)
    runs: list[Run] = []

    def build(**output: int) -> Run:
        runs.append(Run(monkeypatch, **output))
        return runs[-1]

    before = signal.getsignal(signal.SIGTERM)
    yield build
    signal.signal(signal.SIGTERM, before)  # an interrupted run may leave its own
    for run in runs:
        run.close()


Begin = Callable[..., Run]


def refuse_value() -> None:
    raise ClientError("not a value of its schema")


def refuse_partition(run: Run) -> None:
    """Let a round fail after the records of the other partition."""
    if run.cluster.fetches == 2:
        run.cluster.errors = {PLACES[1]: TopicAuthorizationFailedError}


EVENTS = {
    "SIGTERM": (lambda: signal.raise_signal(signal.SIGTERM), SystemExit),
    "SIGINT": (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
    "a value that cannot be decoded": (refuse_value, ClientError),
}


@pytest.mark.parametrize("at", range(0, 2 * COUNT, 3))
@pytest.mark.parametrize("event", EVENTS)
def test_an_end_while_a_line_is_formatted_commits_the_lines_before_it(begin: Begin, event: str, at: int) -> None:
    run, (action, error) = begin(), EVENTS[event]
    with pytest.raises(error):
        run.consume(at, action)
    assert run.committed == run.printed()
    assert sum(run.committed.values()) == at
    assert run.has_left


@pytest.mark.parametrize("count", range(1, 2 * COUNT + 2))
def test_a_limit_commits_the_lines_up_to_it(begin: Begin, count: int) -> None:
    run = begin()
    run.consume(max_records=count)
    assert run.committed == run.printed()
    assert sum(run.committed.values()) == min(count, 2 * COUNT)


def test_a_round_that_fails_commits_the_lines_before_it(begin: Begin) -> None:
    run = begin()
    run.cluster.before = lambda: refuse_partition(run)
    with pytest.raises(TopicAuthorizationFailedError):
        run.consume()
    assert run.committed == run.printed() == {PLACES[0]: 4, PLACES[1]: 2}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EPIPE])
@pytest.mark.parametrize("room", range(0, 2 * 2 * COUNT, 3))
@pytest.mark.parametrize("seed", range(3))
def test_an_output_that_fails_commits_no_line_that_it_lacks(begin: Begin, room: int, error: int, seed: int) -> None:
    run, source = begin(room=room, error=error), random.Random(seed)
    run.cluster.before = source.choice([lambda: refuse_partition(run), lambda: None])
    action, _ = EVENTS[source.choice(list(EVENTS))]
    with suppress(OSError, TopicAuthorizationFailedError, ClientError, SystemExit, KeyboardInterrupt):
        run.consume(source.choice([-1, 5]), action, source.choice([None, 5]))
    assert_written(run)
    assert run.has_left


@pytest.mark.parametrize("room", [7, 1 << 30])
def test_a_signal_between_any_two_lines_of_code_commits_no_line_that_was_not_written(begin: Begin, room: int) -> None:
    moment, was_interrupted = 0, True
    while was_interrupted:
        run = begin(room=room)
        moment += 1
        was_interrupted = interrupt_at(moment, run.consume)
        assert_written(run)
    assert moment > 100


def interrupt_at(moment: int, action: Callable[[], None]) -> bool:
    """Interrupt the action at this line of code of the two modules; return whether it had so many."""
    seen = Counter[str]()

    def interrupt(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in (reading.__file__, consume.__file__):
            return None
        if event == "line":
            seen["lines"] += 1
            if seen["lines"] == moment:
                raise KeyboardInterrupt
        return interrupt

    with suppress(KeyboardInterrupt, OSError), traced(interrupt):
        action()
    return seen["lines"] >= moment
