"""Permissions of the admin interface: the operation that each page requires, and its check for a request's sender.

C is the cluster and T the topic of the path. Open pages need no login, but a wrong one is refused there, too.

    page                         open    needs                    without it
    /healthz, /readyz            yes     nothing                  -
    GET  /metrics                no      DESCRIBE C               403
    GET  /compaction             no      DESCRIBE C               403; topics without DESCRIBE are left out
    POST /compaction/T           no      ALTER T                  403; 404 without DESCRIBE
    GET  /topics/T/records       no      READ T                   403; 404 without DESCRIBE
    POST /logs/retry             no      ALTER C                  403
    GET  /console, its clients   no      DESCRIBE C               403
    GET  its compaction          no      DESCRIBE C               403; topics without DESCRIBE are left out
    GET  records of its topics   no      READ T                   403; 404 without DESCRIBE
    ...  decoded by a schema     no      READ _schemas            shown as bytes, not decoded
    GET  its other pages         no      what the Kafka requests of the page need, for the same user

A sender without a login gets 401. Without an authorizer every user may do everything, except that a token for reading
allows no writes. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from aiohttp import web

from tidelog.broker.admin.guard import refusal
from tidelog.broker.admin.login.logins import Caller, Logins
from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.audit import record
from tidelog.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType

CALLER: web.RequestKey[Caller | None] = web.RequestKey("caller", Caller)
"""The sender of a request; None for an open page without a login, if logins are configured."""
T = TypeVar("T")
OPEN = frozenset({"/healthz", "/readyz"})
_READS = frozenset({"GET", "HEAD"})
CHECKED_PER_TURN = 200
"""Largest number of topics whose permissions are checked in one turn of the loop."""


class Need(NamedTuple):
    """An operation that a page requires: on the topic of the path (``of_topic``), on ``topic``, else on the cluster."""

    operation: AclOperation
    of_topic: bool = False
    topic: str = ""


NEEDS = {
    "/metrics": Need(AclOperation.DESCRIBE),
    "/compaction": Need(AclOperation.DESCRIBE),
    "/compaction/{topic}": Need(AclOperation.ALTER, of_topic=True),
    "/topics/{topic}/records": Need(AclOperation.READ, of_topic=True),
    "/logs/retry": Need(AclOperation.ALTER),
}
"""Path of a route -> the operation that it requires."""
CONSOLE_NEEDS: dict[str, Need | None] = {
    "/console": Need(AclOperation.DESCRIBE),
    "/console/topics": None,
    "/console/topics/{topic}": None,
    "/console/topics/{topic}/records": Need(AclOperation.READ, of_topic=True),
    "/console/topics/{topic}/records/{partition}/{offset}": Need(AclOperation.READ, of_topic=True),
    "/console/groups": None,
    "/console/group": None,
    "/console/transactions": None,
    "/console/transaction": None,
    "/console/compaction": Need(AclOperation.DESCRIBE),
    "/console/configuration": None,
    "/console/access": None,
    "/console/clients": Need(AclOperation.DESCRIBE),
    "/console/client": Need(AclOperation.DESCRIBE),
    "/console/static/{name}": None,
}
"""The same for the console's pages. None: the page sends Kafka requests as its user, and each of them is authorized;
static files need only the login."""


def need_of_page(_request: web.Request, path: str) -> Need | None:
    """Return the operation that a page of the admin interface requires; None if the page itself requires none."""
    return NEEDS.get(path) or CONSOLE_NEEDS.get(path)


class Permissions:
    """Checks the sender of each request."""

    def __init__(
        self,
        broker: Broker,
        logins: Logins,
        need_of: Callable[[web.Request, str], Need | None] = need_of_page,
    ) -> None:
        """``need_of`` returns the operation that a request to a path requires, or None."""
        self._broker = broker
        self._logins = logins
        self._need_of = need_of

    async def refuse_caller(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request whose sender has to log in, or None. The sender is in ``CALLER`` then."""
        request[CALLER] = None
        if path_of(request) in OPEN and not self._logins.has_credentials(request):
            if not self._logins.methods:
                request[CALLER] = await self._logins.identify(request)
            return None
        request[CALLER] = await self._logins.identify(request)
        return None if request[CALLER] is not None else self._ask_for_login()

    def refuse_page(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request that its sender may not make, or None."""
        caller = request[CALLER]
        if caller is None:
            return None
        need = self._need_of(request, path_of(request))
        if request.method not in _READS and (need is None or need.operation is not AclOperation.READ):
            record("admin write", user=str(caller.principal), address=request.remote or "", method=request.method,
                   path=request.path)  # fmt: skip
            if not caller.may_write:
                return refusal(403, "the token allows only reading")
        return None if need is None else self._refuse_need(request, need)

    def _ask_for_login(self) -> web.Response:
        response = refusal(401, "log in first")
        for challenge in self._logins.challenges:
            response.headers.add("WWW-Authenticate", challenge)
        return response

    def _refuse_need(self, request: web.Request, need: Need) -> web.Response | None:
        authorizer = self._broker.authorizer
        if authorizer is None:
            return None
        kind, name = (ResourceType.TOPIC, need.topic) if need.topic else (ResourceType.CLUSTER, CLUSTER_NAME)
        if need.of_topic:
            kind, name = ResourceType.TOPIC, request.match_info["topic"]
            if not may_describe(self._broker, request, name):
                return refusal(404, f"there is no topic {name}")
        if authorizer.authorize(context_of(request), need.operation, kind, name):
            return None
        return refusal(403, "not allowed")


def path_of(request: web.Request) -> str:
    """Return the path of a request's route, with its parameters in braces; an empty text if there is no such page."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def may_describe(broker: Broker, request: web.Request, topic: str) -> bool:
    """Return whether a request's sender may know that a topic exists."""
    return broker.authorizer is None or broker.authorizer.may_describe(context_of(request), topic)


def may_read(broker: Broker, request: web.Request, topic: str) -> bool:
    """Return whether a request's sender may read the records of a topic."""
    authorizer = broker.authorizer
    if authorizer is None:
        return True
    return authorizer.authorize(context_of(request), AclOperation.READ, ResourceType.TOPIC, topic)


async def filter_visible(broker: Broker, request: web.Request, rows: list[T], topic_of: Callable[[T], str]) -> list[T]:
    """Return the rows whose topics a request's sender may know. CHECKED_PER_TURN topics are checked in each turn of the
    loop."""
    if broker.authorizer is None:
        return rows
    known: set[str] = set()
    for number, topic in enumerate(set(map(topic_of, rows)), 1):
        if may_describe(broker, request, topic):
            known.add(topic)
        if not number % CHECKED_PER_TURN:
            await asyncio.sleep(0)
    return [row for row in rows if topic_of(row) in known]


def context_of(request: web.Request) -> RequestContext:
    """Build the request context of a sender, for the authorizer."""
    caller = request[CALLER]
    assert caller is not None
    context = RequestContext(client_host=request.remote or "", listener_name="admin")
    context.principal = caller.principal
    return context
