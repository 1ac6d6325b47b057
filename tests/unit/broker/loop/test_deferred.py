from __future__ import annotations

import pytest

from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred, when_all_done
from tidelog.protocol.errors import KafkaError, KafkaStorageError, UnknownServerError


def test_complete_calls_back_in_order() -> None:
    seen: list[tuple[str, int]] = []
    deferred: Deferred[int] = Deferred()
    deferred.on_done(lambda d: seen.append(("first", d.result())))
    deferred.on_done(lambda d: seen.append(("second", d.result())))
    deferred.complete(7)
    assert seen == [("first", 7), ("second", 7)]


def test_callback_of_a_settled_one_runs_at_once() -> None:
    seen: list[int] = []
    deferred: Deferred[int] = Deferred()
    deferred.complete(1)
    deferred.on_done(lambda d: seen.append(d.result()))
    assert seen == [1]


def test_failure_is_raised_by_result() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.fail(KafkaStorageError("gone"))
    assert deferred.done
    with pytest.raises(KafkaStorageError):
        deferred.result()


def test_what_waiters_do_not_know_is_an_unknown_server_error(caplog: pytest.LogCaptureFixture) -> None:
    deferred: Deferred[int] = Deferred()
    deferred.fail(KeyError("gone"))
    with pytest.raises(UnknownServerError):
        deferred.result()
    assert "gone" in caplog.text


def test_a_close_of_the_connection_is_passed_on() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.fail(CloseConnectionError())
    with pytest.raises(CloseConnectionError):
        deferred.map(str).result()


def test_a_callback_that_fails_keeps_no_other_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    deferred: Deferred[int] = Deferred()
    deferred.on_done(lambda _: seen.append(1 // 0))
    deferred.on_done(lambda d: seen.append(d.result()))
    deferred.complete(1)
    assert seen == [1]
    assert "ZeroDivisionError" in caplog.text


def test_who_waits_for_a_callback_that_fails_is_refused() -> None:
    def fail(_: object) -> None:
        raise MemoryError

    deferred, told = Deferred[int](), list[Exception]()
    deferred.on_done(fail, fail)
    deferred.on_done(fail, told.append)
    deferred.complete(1)
    assert isinstance(told[0], MemoryError)


def test_callbacks_that_settling_has_not_come_to_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError

    deferred, seen = Deferred[int](), list[int]()
    deferred.on_done(lambda done: seen.append(done.result()))
    with monkeypatch.context() as patched:
        patched.setattr(Deferred, "_run_callbacks", fail)
        with pytest.raises(MemoryError):
            deferred.complete(1)
    deferred.refuse(MemoryError())
    assert seen == [1]


@pytest.mark.parametrize("error", [MemoryError(), KeyError(), CloseConnectionError(), KafkaStorageError()])
def test_who_waits_for_what_cannot_be_built_is_told(error: Exception) -> None:
    def build(_: object = None) -> int:
        raise error

    first, second, waiting = Deferred[int](), Deferred[int](), Deferred[int]()
    built = when_all_done([waiting], build)
    assert isinstance(built, Deferred)
    followers = [first.map(build), second.recover(build), built]
    first.complete(1)
    second.fail(KafkaStorageError())
    waiting.complete(1)
    for follower in followers:
        with pytest.raises((KafkaError, CloseConnectionError)):
            follower.result()
    passed: Deferred[int] = Deferred()
    second.pass_to(passed)
    with pytest.raises(KafkaStorageError):
        passed.result()


def test_abandon_tells_the_owner_and_drops_callbacks() -> None:
    seen: list[str] = []
    deferred: Deferred[int] = Deferred()
    deferred.on_done(lambda _: seen.append("done"))
    deferred.on_abandon(lambda: seen.append("abandoned"))
    deferred.abandon()
    deferred.abandon()
    deferred.complete(1)
    assert seen == ["abandoned"]
    assert deferred.abandoned


def test_abandoning_a_settled_one_does_nothing() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.complete(1)
    deferred.abandon()
    assert not deferred.abandoned


def test_settling_twice_is_our_mistake() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.complete(1)
    with pytest.raises(AssertionError):
        deferred.complete(2)


def test_who_is_hurried_answers_or_is_left_alone() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.hurry()
    assert not deferred.done
    deferred.on_hurry(lambda: deferred.complete(1))
    deferred.hurry()
    deferred.hurry()
    assert deferred.result() == 1


def test_nobody_hurries_for_one_who_is_gone() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.on_hurry(lambda: deferred.complete(1))
    deferred.abandon()
    deferred.hurry()
    assert not deferred.done


def test_what_is_built_of_settled_ones_is_there_at_once() -> None:
    done: Deferred[int] = Deferred()
    done.complete(1)
    assert when_all_done([done], lambda: "built") == "built"
    assert when_all_done([], lambda: "built") == "built"


def test_what_is_built_of_open_ones_waits_for_the_last() -> None:
    first, second = Deferred[int](), Deferred[int]()
    built = when_all_done([first, second], lambda: "built")
    assert isinstance(built, Deferred)
    second.fail(ValueError("bad"))
    assert not built.done
    first.complete(1)
    assert built.result() == "built"


def test_nothing_is_built_for_who_went_away() -> None:
    waited_for: Deferred[int] = Deferred()
    built = when_all_done([waited_for], lambda: 1 // 0)
    assert isinstance(built, Deferred)
    built.abandon()
    waited_for.complete(1)
    assert not built.done
