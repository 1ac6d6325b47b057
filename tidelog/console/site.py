"""The console's pages over HTTP: parameters, threads, errors, and the static files.

Two pages are built at a time, in threads of their own, so that pages that wait for the loop take no thread of the
broker. Further pages wait; a page whose client has disconnected meanwhile is not built. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from tidelog.broker.admin.parameters import read_parameters
from tidelog.broker.admin.permissions import CALLER, may_describe, may_read
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.client.connection import ClientError
from tidelog.console import pages
from tidelog.console.history import History, Sampler
from tidelog.console.local_client import LocalCluster, RequestSender
from tidelog.console.rendering import STATIC, render
from tidelog.console.schemas import SCHEMAS_TOPIC, Schemas, as_bytes
from tidelog.console.view import Page, View
from tidelog.protocol.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    GroupIdNotFoundError,
    InvalidTopicError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


THREADS = 2
CONTENT_TYPES = {"console.css": "text/css", "console.js": "text/javascript", "console.svg": "image/svg+xml"}
HEADERS = {"Cache-Control": "no-store"}
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (UnknownTopicOrPartitionError, 404),
    (InvalidTopicError, 404),
    (GroupIdNotFoundError, 404),
    (TransactionalIdNotFoundError, 404),
    (TopicAuthorizationFailedError, 404),
    (GroupAuthorizationFailedError, 403),
    (ClusterAuthorizationFailedError, 403),
    (TransactionalIdAuthorizationFailedError, 403),
    (KafkaError, 503),
    (ClientError, 503),
    (ValueError, 400),
)


class Site:
    """The pages of one broker's console."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._dispatcher = Dispatcher(broker)
        self._history = History()
        self._schemas = Schemas(broker)
        self._sampler = Sampler(broker, self._history)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._free_threads = asyncio.Semaphore(THREADS)

    async def close(self) -> None:
        """Stop the threads and the sampler."""
        await self._sampler.close()
        self._schemas.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Build the response to a request that has passed the checks of the admin interface."""
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        if "name" in request.match_info:
            return await self._static(request.match_info["name"])
        self._sampler.watch()
        build = partial(build_page, self._sender(request), path, self._view(request))
        async with self._free_threads:
            if request.transport is None:
                return web.Response()
            status, text = await self._broker.loop.run_in_executor(self._threads, build)
        return web.Response(
            body=text.encode("utf-8", "replace"), status=status, content_type="text/html", charset="utf-8",
            headers=HEADERS,
        )  # fmt: skip

    async def _static(self, name: str) -> web.StreamResponse:
        if name not in CONTENT_TYPES:
            return web.Response(text="there is no such file\n", status=404)
        text = await self._broker.loop.run_in_executor(self._threads, (STATIC / name).read_text)
        return web.Response(text=text, content_type=CONTENT_TYPES[name], charset="utf-8", headers=HEADERS)

    def _sender(self, request: web.Request) -> RequestSender:
        caller = request[CALLER]
        assert caller is not None
        return RequestSender(self._broker, self._dispatcher, caller.principal, request.remote or "")

    def _view(self, request: web.Request) -> Callable[[RequestSender, tuple[str, ...]], View]:
        """Return a function that builds the page's view in its thread. The function raises ValueError, ClientError."""
        query, path = list(request.query.items()), dict(request.match_info)
        reads_schemas = may_read(self._broker, request, SCHEMAS_TOPIC)

        def make(sender: RequestSender, known: tuple[str, ...]) -> View:
            return View(
                sender=sender,
                cluster=LocalCluster(sender),
                history=self._history,
                path=path,
                parameters=read_parameters(query, known),
                may_describe=partial(may_describe, self._broker, request),
                decode=self._schemas.decoder() if reads_schemas else as_bytes,
            )

        return make


def build_page(
    sender: RequestSender, path: str, make: Callable[[RequestSender, tuple[str, ...]], View]
) -> tuple[int, str]:
    """Build HTTP status and HTML of a page. A page's thread."""
    entry = pages.TABLE[path]
    try:
        return 200, render(entry.build(make(sender, entry.parameters)))
    except (KafkaError, ClientError, ValueError) as error:
        status = next(status for kind, status in _STATUSES if isinstance(error, kind))
        return status, render(Page("error.html", "Not shown", {"section": "", "reason": str(error)}))
