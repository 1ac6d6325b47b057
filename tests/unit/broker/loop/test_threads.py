from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import in_thread


async def settled(deferred: Deferred[int]) -> int:
    answered = asyncio.Event()
    deferred.on_done(lambda _: answered.set())
    await answered.wait()
    return deferred.result()


async def test_work_is_answered_on_the_loop() -> None:
    with ThreadPoolExecutor(1) as executor:
        assert await settled(in_thread(asyncio.get_running_loop(), executor, lambda: 7)) == 7


async def test_what_work_raises_is_passed_on() -> None:
    with ThreadPoolExecutor(1) as executor, pytest.raises(ZeroDivisionError):
        await settled(in_thread(asyncio.get_running_loop(), executor, lambda: 1 // 0))
