"""Threads that use a log's files delay its deletion, and none begins to use them after it."""

from __future__ import annotations

import threading

import pytest

from tidelog.log.file_use import FileUse, LogDeletedError


def enter_again_and_again(use: FileUse) -> None:
    while True:
        with use:
            pass


def test_stop_waits_for_those_inside() -> None:
    use, stopped = FileUse(), threading.Event()

    def stop() -> None:
        use.stop()
        stopped.set()

    with use:
        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        with pytest.raises(LogDeletedError):
            enter_again_and_again(use)  # until the deletion has begun
        assert not stopped.is_set()
    thread.join()
    assert stopped.is_set()


def test_none_begins_after_a_stop() -> None:
    use = FileUse()
    use.stop()
    with pytest.raises(LogDeletedError), use:
        pass


def test_a_thread_may_enter_twice() -> None:
    use = FileUse()
    with use, use:
        pass
    use.stop()


def test_an_error_inside_counts_as_leaving() -> None:
    use = FileUse()
    with pytest.raises(ZeroDivisionError), use:
        raise ZeroDivisionError
    use.stop()
