"""The listening socket of the admin interface with TLS: accepting pauses while the process has no free descriptor."""

from __future__ import annotations

import asyncio
import errno
from typing import Any, cast

import pytest

from tidelog.broker.admin import sites
from tidelog.broker.admin.sites import TlsSite


class Listener:
    """A listening socket whose ``accept`` fails in these ways, one after the other; then no client waits."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.asked = 0

    def accept(self) -> Any:
        self.asked += 1
        raise OSError(self.codes.pop(0), "") if self.codes else BlockingIOError

    def fileno(self) -> int:
        return 7


class Loop:
    """The reader and the timer of an event loop, as far as the listening socket needs them."""

    def __init__(self) -> None:
        self.readers: set[int] = set()
        self.timers: list[tuple[float, Any]] = []

    def add_reader(self, descriptor: int, *_: object) -> None:
        self.readers.add(descriptor)

    def remove_reader(self, descriptor: int) -> None:
        self.readers.discard(descriptor)

    def call_later(self, delay_s: float, act: Any, *parameters: object) -> None:
        self.timers.append((delay_s, lambda: act(*parameters)))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_accepting_pauses_without_a_free_descriptor(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    loop, listener, nothing = Loop(), Listener(code), cast(Any, None)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    site = object.__new__(TlsSite)
    site._listener = cast(Any, listener)
    site._listen(nothing)
    site._accept(nothing)
    assert (loop.readers, listener.asked) == (set(), 1)
    ((delay_s, resume),) = loop.timers
    resume()
    assert (loop.readers, delay_s) == ({7}, sites.PAUSE_S)


def test_a_client_that_disconnected_early_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, listener = Loop(), Listener(errno.ECONNABORTED)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    site = object.__new__(TlsSite)
    site._listener = cast(Any, listener)
    site._accept(cast(Any, None))
    assert (listener.asked, loop.timers) == (2, [])
