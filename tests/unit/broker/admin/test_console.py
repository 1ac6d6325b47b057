"""The console's hook in the admin interface: its pages are imported once, at their first use, and closed with the
interface."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.admin import console
from tidelog.broker.admin.permissions import CONSOLE_NEEDS


async def test_the_pages_are_imported_with_the_first_request_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Site:
        def __init__(self, _broker: object) -> None:
            made.append(self)
            self.is_closed = False

        async def answer(self, request: object) -> object:
            return request

        async def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(console, "_import_site", lambda: SimpleNamespace(Site=Site))
    entrance = console.Entrance(cast(Any, SimpleNamespace(loop=asyncio.get_running_loop())))
    routes = {route.path: cast(Any, route).handler for route in entrance.routes()}
    assert routes.keys() == CONSOLE_NEEDS.keys() | {"/", "/console/"}
    await entrance.close(cast(Any, None))
    assert made == []
    asked = [routes["/console"]("a"), routes["/console/topics"]("b")]
    assert await asyncio.gather(*asked) == ["a", "b"]
    await entrance.close(cast(Any, None))
    assert [one.is_closed for one in made] == [True]
