"""Entrance of the console, web pages about the broker: the routes of the pages, whose modules are imported late.

The console is a layer above the broker, which may not import it: its module is named here by a string, as handlers are
in the table of APIs. A thread imports it with the first request for a page, so a broker whose console is not used
starts no slower and takes no memory for it. Loop thread only.
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
"""Paths that redirect to the console's first page."""
SITE = "tidelog.console.site"
"""The module of the pages; its class ``Site`` answers requests."""


class Site(Protocol):
    """The part of the console's pages that ``Entrance`` uses."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request that passed all checks."""
        ...

    async def close(self) -> None:
        """End the pages' threads and timers."""
        ...


class Entrance:
    """The routes of the console, and its ``Site`` after the first request."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._site: Site | None = None
        self._opening = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the pages, which answer GET and HEAD."""
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
    """Answer a request for ``/`` or ``/console/`` by a redirect to the console's first page."""
    return web.Response(status=302, headers={"Location": ROOT})


def _import_site() -> ModuleType:
    with quiet_import():
        return importlib.import_module(SITE)
