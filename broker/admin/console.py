"""Entrance of the console: its paths, what each needs, and its pages, which come with the first request for one.

The console stands above the broker, which may not import it: its module is named here as a text, as the table of APIs
names its handlers. A thread imports it when a first page is asked for, so start and idle memory are those of a broker
without it. Loop thread only.
"""

from __future__ import annotations

import asyncio
import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from tidelog.broker.admin.permissions import CONSOLE_NEEDS
from tidelog.log.records.quiet_import import quiet_import

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

ROOT = "/console"
TO_CONSOLE = ("/", "/console/")
"""Paths that lead to the first page."""
SITE = "tidelog.console.site"
"""The module of the pages; its ``Site`` answers."""


class Site(Protocol):
    """The part of the console's pages that ``Entrance`` uses."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request that passed all checks."""
        ...

    async def close(self) -> None:
        """End threads and timers."""
        ...


class Entrance:
    """The routes of the console, and its pages once a first one was asked for."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._site: Site | None = None
        self._opening = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return the paths of the pages; each of them only reads."""
        return [
            *(web.get(path, go_to_console) for path in TO_CONSOLE),
            *(web.get(path, self._answer) for path in CONSOLE_NEEDS),
        ]

    async def close(self, _app: web.Application) -> None:
        """End the pages' threads and timers."""
        if self._site is not None:
            await self._site.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        async with self._opening:
            if self._site is None:
                module = await self._broker.loop.run_in_executor(None, _import_site)
                self._site = module.Site(self._broker)
        return await self._site.answer(request)


async def go_to_console(_request: web.Request) -> web.StreamResponse:
    """Send a person who knows the address alone to the first page."""
    return web.Response(status=302, headers={"Location": ROOT})


def _import_site() -> ModuleType:
    with quiet_import():
        return importlib.import_module(SITE)
