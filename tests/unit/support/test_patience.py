"""The limits of the soak's waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.soak.patience import PATIENCE_S, SLOWEST_BYTES_PER_S, Patience, patience_for
from tests.support.soak.reading import Found, NotReadError, read_to


class Clock:
    """A clock in seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowMessage:
    """A record as librdkafka's client returns it; at offset ``end`` the event that the partition has ended."""

    def __init__(self, offset: int, end: int) -> None:
        self._offset = offset
        self._is_end = offset == end

    def error(self) -> Any:
        return EndOfPartition() if self._is_end else None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"v"


class EndOfPartition:
    """The error at the end of a partition."""

    def code(self) -> int:
        return -191


class SlowConsumer:
    """A consumer of a partition with ``end`` records. It takes ``seconds`` for each, and returns ``given``."""

    def __init__(self, clock: Clock, end: int, seconds: float, given: int) -> None:
        self._clock = clock
        self._end = end
        self._seconds = seconds
        self._messages = iter([SlowMessage(offset, end) for offset in range(given)])

    def consume(self, _: int, timeout: float) -> list[SlowMessage]:
        assert timeout > 0
        self._clock.now += self._seconds
        return [message] if (message := next(self._messages, None)) is not None else []


def test_patience_is_over_after_too_long_without_progress() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)
    for progress in range(100):
        clock.now += 9.0
        assert not patience.is_over(progress)
    clock.now += 9.0
    assert not patience.is_over(99)
    clock.now += 9.0
    assert patience.is_over(99)


def test_a_reader_continues_as_long_as_it_gets_records() -> None:
    clock = Clock()
    consumer = SlowConsumer(clock, 100, PATIENCE_S / 2, 101)
    found = read_to(consumer, "t", {0: 100}, Patience(clock=clock))
    assert found == {(0, offset): Found(None, b"v") for offset in range(100)}


def test_a_reader_that_gets_no_more_records_is_an_error() -> None:
    clock = Clock()
    consumer = SlowConsumer(clock, 100, PATIENCE_S / 2, 50)
    with pytest.raises(NotReadError, match="are not read to their ends"):
        read_to(consumer, "t", {0: 100}, Patience(clock=clock))


def test_the_limit_of_a_command_grows_with_the_bytes_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    before = patience_for(tmp_path)
    with open(tmp_path / "t-0" / "log", "wb") as file:
        file.truncate(int(100 * SLOWEST_BYTES_PER_S))
    assert patience_for(tmp_path) == pytest.approx(before + 100)
