"""Checks of transaction indices run one after the other, and each waiting fetch gets the result."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import run_now
from tidelog.broker.replica.index_proofs import IndexProofs
from tidelog.protocol.errors import KafkaStorageError, UnknownServerError


class Threads:
    """Keeps the first piece of work; all later ones end at once, as where no thread can be started."""

    def __init__(self, later: Callable[[Callable[[], None]], Deferred[None]]) -> None:
        self.first: Deferred[None] | None = None
        self._later = later

    def __call__(self, work: Callable[[], None]) -> Deferred[None]:
        if self.first is None:
            self.first = Deferred()
            return self.first
        return self._later(work)


def refused(_: Callable[[], None]) -> Deferred[None]:
    deferred: Deferred[None] = Deferred()
    deferred.fail(UnknownServerError())
    return deferred


@pytest.mark.parametrize("later", [run_now, refused])
def test_checks_that_end_together_are_answered_in_order_without_recursion(
    later: Callable[[Callable[[], None]], Deferred[None]],
) -> None:
    threads = Threads(later)
    proofs = IndexProofs(threads)
    answered: list[int] = []
    for number in range(2 * sys.getrecursionlimit()):
        proofs.run(bool).on_done(lambda _, number=number: answered.append(number))  # type: ignore[misc]
    assert answered == []
    assert threads.first is not None
    threads.first.complete(None)
    assert sorted(answered) == list(range(2 * sys.getrecursionlimit()))
    assert proofs.run(bool).done, "the queue goes on"


def test_a_check_requested_by_a_callback_waits_for_its_turn() -> None:
    threads = Threads(run_now)
    proofs = IndexProofs(threads)
    order: list[str] = []

    def ask_again(_: Deferred[None]) -> None:
        proofs.run(lambda: order.append("third"))

    proofs.run(bool).on_done(ask_again)
    proofs.run(lambda: order.append("second"))
    assert threads.first is not None
    threads.first.complete(None)
    assert order == ["second", "third"]


def test_a_failed_check_is_an_error_and_the_next_one_runs() -> None:
    proofs = IndexProofs(run_now)

    def fail() -> None:
        raise KafkaStorageError

    failed = proofs.run(fail)
    with pytest.raises(KafkaStorageError):
        failed.result()
    assert proofs.run(bool).has_value
