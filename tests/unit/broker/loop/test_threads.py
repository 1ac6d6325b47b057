from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import BrokerThreads, RecordThreads, run_in_thread
from tidelog.protocol.errors import KafkaStorageError, UnknownServerError


async def settled(deferred: Deferred[int]) -> int:
    answered = asyncio.Event()
    deferred.on_done(lambda _: answered.set())
    await answered.wait()
    return deferred.result()


async def test_work_is_answered_on_the_loop() -> None:
    with ThreadPoolExecutor(1) as executor:
        assert await settled(run_in_thread(asyncio.get_running_loop(), executor, lambda: 7)) == 7


def refuse() -> int:
    raise KafkaStorageError


@pytest.mark.parametrize(("work", "error"), [(refuse, KafkaStorageError), (lambda: 1 // 0, UnknownServerError)])
async def test_an_error_of_the_work_is_passed_on(work: Callable[[], int], error: type[Exception]) -> None:
    with ThreadPoolExecutor(1) as executor, pytest.raises(error):
        await settled(run_in_thread(asyncio.get_running_loop(), executor, work))


async def test_work_for_which_there_is_no_thread_is_answered() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(UnknownServerError):
        run_in_thread(asyncio.get_running_loop(), executor, lambda: 7).result()


async def test_work_that_is_cancelled_is_answered() -> None:
    held = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(held.wait)
        deferred = run_in_thread(asyncio.get_running_loop(), executor, lambda: 7)
        executor.shutdown(wait=False, cancel_futures=True)
        held.set()
        with pytest.raises(UnknownServerError):
            await settled(deferred)


def test_record_threads_are_busy_until_their_work_is_done() -> None:
    """Work that waits for a thread counts, and work that fails ends."""
    held = threading.Event()
    with RecordThreads(1) as threads:
        assert not threads.is_busy()
        waiting, failing = threads.submit(held.wait), threads.submit(refuse)
        assert threads.is_busy()
        held.set()
        assert waiting.result()
        assert isinstance(failing.exception(), KafkaStorageError)
    assert not threads.is_busy()


def start_no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_work_waits_for_a_running_thread_if_no_other_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    with BrokerThreads(2) as executor:
        executor.submit(goes_on.wait)
        monkeypatch.setattr(threading.Thread, "start", start_no_thread)
        second = executor.submit(lambda: 7)
        goes_on.set()
        assert second.result(10) == 7


def test_work_that_could_not_be_begun_is_not_done_later() -> None:
    done: list[int] = []
    with BrokerThreads(1) as executor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_no_thread)
            with pytest.raises(RuntimeError, match="can't start"):
                executor.submit(done.append, 1)
        executor.submit(done.append, 2).result(10)
    assert done == [2]
