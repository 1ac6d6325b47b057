"""The admin interface's pages, on aiohttp. Imported with the first connection (``tidelog.broker.admin.listener``).

GET  /healthz                      200 while the process answers
GET  /readyz                       200 when every log directory works and is neither full nor read-only, and no log is
                                   refused (it cannot be loaded) or out of service, else 503 with the reasons; if logins
                                   are configured, only users who log in get the reasons
GET  /metrics                      Prometheus text; ?internal=1 adds internal topics
GET  /compaction                   JSON: state of every compacted partition
POST /compaction/TOPIC             clean its partitions now; JSON of the results when done
     ?dry_run=1 changes no log, ?wait=0 answers 202 at once
POST /logs/retry                   load every refused log again; JSON of those still refused or out of service
GET  /topics/TOPIC/records         records by key, tag and time (``tidelog.broker.admin.find``)
GET  /console                      pages for people (``tidelog.console``)
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tidelog.broker.admin import console
from tidelog.broker.admin.connections import Connections
from tidelog.broker.admin.guard import KEEPALIVE_S, MAX_BODY_BYTES, Hosts, add_headers, make_guard
from tidelog.broker.admin.login.access import LISTENER, check_access
from tidelog.broker.admin.login.logins import Logins
from tidelog.broker.admin.parameters import parse_switch, read_parameters
from tidelog.broker.admin.permissions import CALLER, Permissions, filter_visible
from tidelog.broker.admin.prometheus import snapshot, write_page
from tidelog.broker.admin.sites import PlainSite, TlsSite
from tidelog.broker.cleaning import RequestedRounds, cleaner_of, config_of, request_rounds, statuses
from tidelog.broker.config.keys.admin import ADMIN_LISTENER, ADMIN_MAX_CONNECTIONS
from tidelog.cleaner.log_cleaner import CleaningUnavailableError
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.security.tls.listener import TlsListener
    from tidelog.broker.security.tls.listeners import TlsListeners
    from tidelog.log.manager import LogManager

BROKER: web.AppKey[Any] = web.AppKey("broker", object)
SEARCHES: web.AppKey[ThreadPoolExecutor] = web.AppKey("searches", ThreadPoolExecutor)
CONTENT_TYPE = "text/plain; version=0.0.4"
STOP_TIMEOUT_S = 1.0
SEARCH_THREADS = 4
"""Threads of searches for records. A search may wait half a minute for the index, so searches use no other threads."""


async def serve(broker: Broker, listener: socket.socket) -> web.AppRunner:
    """Serve the pages on a listening socket, which ``cleanup`` of the returned runner closes. Raises ConfigError."""
    stores = build_stores(broker, ADMIN_LISTENER)
    logins = Logins(broker, tls_of(stores))
    permissions = Permissions(broker, logins)
    guard = make_guard(Hosts(broker.config), permissions.refuse_caller, check_page=permissions.refuse_page)
    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES + 1)
    app[BROKER] = broker
    app[SEARCHES] = ThreadPoolExecutor(SEARCH_THREADS, "search")
    pages = console.Entrance(broker)
    app.on_response_prepare.append(add_headers)
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
            web.get("/compaction", compaction),
            web.post("/compaction/{topic}", run_compaction),
            web.post("/logs/retry", retry_logs),
            web.get("/topics/{topic}/records", find_records),
            *pages.routes(),
        ]
    )
    app.on_cleanup.extend([pages.close, partial(close_logins, logins, stores), end_searches])
    return await run_site(broker, app, listener, stores)


def tls_of(stores: TlsListeners | None) -> Callable[[], TlsListener] | None:
    """Return a function that returns the interface's current TLS listener; None if it has no TLS."""
    return None if stores is None else partial(stores.listener, LISTENER)


async def run_site(
    broker: Broker, app: web.Application, listener: socket.socket, stores: TlsListeners | None
) -> web.AppRunner:
    """Serve an app on a listening socket, with the limits and the TLS of HTTP interfaces."""
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=STOP_TIMEOUT_S, keepalive_timeout=KEEPALIVE_S, lingering_time=0,
        auto_decompress=False,
    )  # fmt: skip
    await runner.setup()
    connections = Connections(broker.config.get_int(ADMIN_MAX_CONNECTIONS))
    context = None if stores is None else stores.listener(LISTENER)
    await (
        PlainSite(runner, listener, connections) if context is None else TlsSite(runner, listener, connections, context)
    ).start()
    return runner


def build_stores(broker: Broker, key: str) -> TlsListeners | None:
    """Build the TLS stores of the interface with this key; None if it has no TLS. Raises ConfigError."""
    texts = check_access(broker.config, key)
    if not texts:
        return None
    from tidelog.broker.security.tls.listeners import TlsListeners  # imported late: it loads OpenSSL, which few need

    return TlsListeners([LISTENER], texts, broker.loop, broker.timers, broker.executor)


async def close_logins(logins: Logins, stores: TlsListeners | None, _app: web.Application) -> None:
    """End the threads of the logins, and the threads and timers of the TLS stores."""
    logins.close()
    if stores is not None:
        stores.close()


async def end_searches(app: web.Application) -> None:
    """Begin no further work of searches."""
    app[SEARCHES].shutdown(wait=False, cancel_futures=True)


async def healthz(_request: web.Request) -> web.Response:
    """Answer "ok", which shows that the event loop runs."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """Answer whether all logs can be served."""
    broker = request.app[BROKER]
    failures = await broker.loop.run_in_executor(None, failures_of, broker.log_manager)
    shown = failures if request[CALLER] is not None else ["not ready"]
    return web.Response(text="\n".join(shown if failures else ["ok"]) + "\n", status=503 if failures else 200)


def failures_of(manager: LogManager) -> list[str]:
    """Return the reasons why logs cannot be served, a line each. Any thread: it takes time for each log."""
    reasons = [(d.path, d.state.failure or d.state.shortage) for d in manager.directories]
    failures = [f"{path}: {reason}" for path, reason in reasons if reason is not None]
    return failures + [f"{partition} is refused: {reason}" for partition, reason in manager.refused.items()]


async def metrics(request: web.Request) -> web.Response:
    """Answer with counters, gauges and histograms of the broker and of its cleaner."""
    try:
        with_internal = parse_switch(read_parameters(request.query.items(), ("internal",)), "internal")
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    broker = request.app[BROKER]
    cleaner, turns = cleaner_of(broker), broker.timers.turns
    began = broker.time.monotonic_ms()
    turns.begin(began)
    taken = snapshot(broker, with_internal=with_internal)
    turns.end(began, broker.time.monotonic_ms(), "GET /metrics")
    text = await broker.loop.run_in_executor(None, write_page, taken, cleaner)
    response = web.Response(text=text)
    response.headers["Content-Type"] = CONTENT_TYPE
    return response


def to_json_value(value: Any) -> Any:
    """Convert a value, such as a frozen dataclass, to types that JSON has."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, TopicPartition):
        return {"topic": value.topic, "partition": value.partition}
    if dataclasses.is_dataclass(value):
        return {field.name: to_json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


async def compaction(request: web.Request) -> web.Response:
    """Answer with the state of every compacted partition whose topic the sender may know."""
    broker = request.app[BROKER]
    cleaner_of(broker)  # starts the cleaner if it is not running
    found = await broker.loop.run_in_executor(None, statuses, broker)
    shown = await filter_visible(broker, request, found, lambda status: status.topic_partition.topic)
    text = await broker.loop.run_in_executor(None, lambda: json.dumps([to_json_value(status) for status in shown]))
    return web.json_response(text=text)


async def run_compaction(request: web.Request) -> web.Response:
    """Clean all partitions of a topic of which this broker has a replica."""
    try:
        parameters = read_parameters(request.query.items(), ("dry_run", "wait"))
        dry_run, wait = parse_switch(parameters, "dry_run"), parse_switch(parameters, "wait", default=True)
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    broker = request.app[BROKER]
    topic = request.match_info["topic"]
    image = broker.metadata.topics.get(topic)
    if image is None:
        return web.json_response({"error": f"there is no topic {topic}"}, status=404)
    config = config_of(broker, topic)
    if config is not None and not config.compact:
        return web.json_response({"error": f"{topic} is not compacted: its cleanup.policy has no compact"}, status=409)
    in_worker, cleaner = partial(broker.loop.run_in_executor, None), cleaner_of(broker)
    rounds = await in_worker(partial(request_rounds, broker, cleaner, image, dry_run=dry_run))
    if not rounds.partitions:
        return web.json_response({"error": f"broker {broker.node_id} has no replica of {topic}"}, status=409)
    if not wait:
        return web.json_response({"requested": len(rounds.futures)}, status=202)
    await asyncio.wrap_future(rounds.done)
    text, status = await in_worker(describe_rounds, rounds)
    return web.json_response(text=text, status=status)


def describe_rounds(rounds: RequestedRounds) -> tuple[str, int]:
    """Return the result of each partition as JSON, and the HTTP status. In a worker: there may be 10,000 partitions."""
    answer = [_result(partition, rounds.result(partition)) for partition in rounds.partitions]
    return json.dumps(answer), 409 if any("error" in entry for entry in answer) else 200


async def retry_logs(request: web.Request) -> web.Response:
    """Load the refused logs again, also those that need a repair: the operator may have made it."""
    try:
        read_parameters(request.query.items(), ())
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    broker = request.app[BROKER]
    text = await broker.loop.run_in_executor(None, try_refused_again, broker.log_manager)
    return web.json_response(text=text)


def try_refused_again(manager: LogManager) -> str:
    """Load the refused logs again, and return JSON of those still refused or out of service. In a worker."""
    manager.room.try_refused_again()
    return json.dumps(
        [{**to_json_value(partition), "error": str(error)} for partition, error in manager.refused.items()]
    )


async def find_records(request: web.Request) -> web.StreamResponse:
    """Search for records. The modules for it are imported with the first request."""
    from tidelog.broker.admin.find import answer_find

    return await answer_find(request.app[BROKER], request, request.app[SEARCHES])


def _result(partition: TopicPartition, result: Any) -> dict[str, Any]:
    if isinstance(result, BaseException):
        expected = isinstance(result, KafkaError | CleaningUnavailableError)
        return {**to_json_value(partition), "error": str(result) if expected else f"{type(result).__name__}: {result}"}
    return {**to_json_value(partition), **to_json_value(result)}
