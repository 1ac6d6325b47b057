"""Deferred: callbacks, errors, abandoned and hurried results, and results built from several others."""

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


def test_a_callback_added_to_a_settled_deferred_runs_at_once() -> None:
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


def test_an_error_that_is_no_kafka_error_becomes_unknown_server_error(caplog: pytest.LogCaptureFixture) -> None:
    deferred: Deferred[int] = Deferred()
    deferred.fail(KeyError("gone"))
    with pytest.raises(UnknownServerError):
        deferred.result()
    assert "gone" in caplog.text


def test_close_connection_error_is_kept_as_it_is() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.fail(CloseConnectionError())
    with pytest.raises(CloseConnectionError):
        deferred.map(str).result()


def test_callbacks_after_one_that_raises_are_called(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    deferred: Deferred[int] = Deferred()
    deferred.on_done(lambda _: seen.append(1 // 0))
    deferred.on_done(lambda d: seen.append(d.result()))
    deferred.complete(1)
    assert seen == [1]
    assert "ZeroDivisionError" in caplog.text


def test_the_error_of_a_callback_is_given_to_its_refuse() -> None:
    def fail(_: object) -> None:
        raise MemoryError

    deferred, errors = Deferred[int](), list[Exception]()
    deferred.on_done(fail, fail)
    deferred.on_done(fail, errors.append)
    deferred.complete(1)
    assert isinstance(errors[0], MemoryError)


def test_refuse_runs_callbacks_that_an_interrupted_complete_left(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_error_in_build_or_recover_fails_the_deferred_that_follows(error: Exception) -> None:
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


def test_abandoning_a_settled_deferred_does_nothing() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.complete(1)
    deferred.abandon()
    assert not deferred.abandoned


def test_settling_twice_is_an_assertion_error() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.complete(1)
    with pytest.raises(AssertionError):
        deferred.complete(2)


def test_hurry_calls_the_owner_if_it_has_a_callback_for_it() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.hurry()
    assert not deferred.done
    deferred.on_hurry(lambda: deferred.complete(1))
    deferred.hurry()
    deferred.hurry()
    assert deferred.result() == 1


def test_hurry_does_nothing_after_abandon() -> None:
    deferred: Deferred[int] = Deferred()
    deferred.on_hurry(lambda: deferred.complete(1))
    deferred.abandon()
    deferred.hurry()
    assert not deferred.done


def test_when_all_done_builds_at_once_if_all_are_settled() -> None:
    done: Deferred[int] = Deferred()
    done.complete(1)
    assert when_all_done([done], lambda: "built") == "built"
    assert when_all_done([], lambda: "built") == "built"


def test_when_all_done_builds_once_the_last_is_settled() -> None:
    first, second = Deferred[int](), Deferred[int]()
    built = when_all_done([first, second], lambda: "built")
    assert isinstance(built, Deferred)
    second.fail(ValueError("bad"))
    assert not built.done
    first.complete(1)
    assert built.result() == "built"


def test_when_all_done_does_not_build_after_abandon() -> None:
    waited_for: Deferred[int] = Deferred()
    built = when_all_done([waited_for], lambda: 1 // 0)
    assert isinstance(built, Deferred)
    built.abandon()
    waited_for.complete(1)
    assert not built.done
