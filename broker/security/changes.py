"""Audit lines of administrators' changes: who made which change from where, without secrets.

When a client disconnects, the steps of its request are closed. The changes that these steps have made by then remain,
and get their lines too (``Notes``): else a client that disconnects at once would leave no trace. ``Broker.late_lines``
writes these lines in steps, as there may be one for each change of the request. Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.config.resource_type import ResourceType as ConfigResource
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.security.audit import record_at_any_level, record_change
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType, member_of

if TYPE_CHECKING:
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.security.late_lines import LateLines

T = TypeVar("T")

TOPICS_PER_LINE = 1_000
"""Largest number of topics in one line: so many names, of 249 bytes at most, are written in less than a millisecond."""

Lines = Iterator[None]
"""Iterator whose steps write one audit line each."""


class Notes:
    """Audit lines of one request's changes. Each is written once its change is durable, even if the client has
    disconnected by then.
    """

    __slots__ = ("_late_lines", "_left")

    def __init__(self, late_lines: LateLines) -> None:
        self._late_lines = late_lines
        self._left: deque[tuple[Deferred[Any], Lines]] = deque()

    def add(self, change: Deferred[Any], lines: Lines) -> None:
        """Add lines that are written when a change is durable, and not if it fails."""
        self._left.append((change, lines))

    def write(self) -> Steps[None]:
        """Write the lines in the order of the changes, one in each step."""
        while self._left:
            change, lines = self._left[0]
            if not change.done:
                yield change
            if error_of(change) is None:
                for _ in lines:
                    yield None
            self._left.popleft()

    def __enter__(self) -> Notes:
        return self

    def __exit__(self, *_: object) -> None:
        """Hand the lines that are left to the late lines, as the request's steps have ended."""
        if self._left:
            self._late_lines.add(self.write())


def note_acls(event: str, context: RequestContext, rules: Iterable[AccessRule]) -> Lines:
    """Write that ACLs were created or deleted."""
    for rule in rules:
        note_acl(event, context, rule)
        yield


def note_acl(event: str, context: RequestContext, rule: AccessRule) -> None:
    """Write that an ACL was created or deleted."""
    acl = {
        "resource": member_of(ResourceType, rule.resource_type).name,
        "name": rule.resource_name,
        "pattern": member_of(PatternType, rule.pattern_type).name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": member_of(AclOperation, rule.operation).name,
        "permission": member_of(AclPermissionType, rule.permission).name,
    }
    note_change(event, context, acl=acl)


def note_configs(context: RequestContext, kind: int, name: str, keys: Iterable[str]) -> Lines:
    """Write which configs of a resource were changed. Their values may be secrets, and are left out. A change of levels
    of loggers is written even if it silences the audit log."""
    resource = ConfigResource(kind)
    write = record_at_any_level if resource is ConfigResource.BROKER_LOGGER else record_change
    user, address = str(context.principal), context.client_host
    write("config changed", user=user, address=address, resource=resource.name, name=name, keys=sorted(set(keys)))
    yield


def note_quotas(context: RequestContext, parts: Iterable[tuple[str, str | None]], keys: Iterable[str]) -> Lines:
    """Write which quotas of an entity were set or removed. A name that is None is the default of its type."""
    note_change("quota changed", context, entity=dict(parts), keys=sorted(set(keys)))
    yield


def note_line(event: str, context: RequestContext, **fields: object) -> Lines:
    """Write one line about a change, in a single step."""
    note_change(event, context, **fields)
    yield


def with_lines(
    change: Steps[T], changed_by: Callable[[T], Iterator[str | None]], event: str, context: RequestContext, group: str
) -> Steps[T]:
    """Do the steps of one change of a group, then write lines of the topics that ``changed_by`` finds in its answer.

    ``changed_by`` yields None for a topic that was not changed. A line has at most TOPICS_PER_LINE topics. If the steps
    are closed halfway, they may have changed some topics: a line with ``is_whole`` false says so.
    """
    topics: list[str] = []
    try:
        answer = yield from change
        for topic in changed_by(answer):
            topics += [] if topic is None else [topic]
            if len(topics) == TOPICS_PER_LINE:
                note_change(event, context, group=group, topics=topics)
                topics = []
            yield None
    except GeneratorExit:
        note_change(event, context, group=group, is_whole=False)
        raise
    if topics:
        note_change(event, context, group=group, topics=topics)
    return answer


def note_change(event: str, context: RequestContext, **fields: object) -> None:
    """Write the line of a change: the event, the user, the user's address and ``fields``."""
    record_change(event, user=str(context.principal), address=context.client_host, **fields)
