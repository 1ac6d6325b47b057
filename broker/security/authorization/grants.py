"""The authorizer's part of a connection's context: its cached decisions about the client, and the check of fetches.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Protocol

from tidelog.protocol.acl import AclOperation

if TYPE_CHECKING:
    from tidelog.broker.replica.fetching.fetch_session import FetchTarget
    from tidelog.broker.security.authorization.decision import Client, Decision
    from tidelog.broker.security.principal import Principal

_READ, _WRITE, _DESCRIBE = int(AclOperation.READ), int(AclOperation.WRITE), int(AclOperation.DESCRIBE)


class Grants:
    """Cached decisions about one client in one generation."""

    __slots__ = (
        "__weakref__",
        "any_of_type",
        "by_operation",
        "cached",
        "client",
        "describable",
        "generation",
        "is_super",
        "principal",
        "readable",
        "verdicts",
        "writable",
    )

    def __init__(self, principal: Principal, client: Client, generation: object, *, is_super: bool) -> None:
        self.principal = principal
        self.client = client
        self.is_super = is_super
        self.begin(generation)

    def begin(self, generation: object) -> None:
        """Drop all cached decisions: a generation has begun, or too many decisions are cached."""
        self.generation = generation
        self.verdicts: dict[int, dict[str, Decision]] = {}
        """Operation and resource type as one number -> resource name -> decision."""
        self.any_of_type: dict[int, bool] = {}
        """The same number -> whether the client may do the operation with at least one resource of the type."""
        self.writable: set[str | bytes] = set()
        """Names and ids of topics with which a shortcut has found WRITE allowed."""
        self.readable: set[str | bytes] = set()
        self.describable: set[str | bytes] = set()
        self.by_operation = {_WRITE: self.writable, _READ: self.readable, _DESCRIBE: self.describable}
        self.cached = 0
        """Number of cached decisions, with those of the shortcuts."""


class FetchGuard(Protocol):
    """Check of the partitions that one connection fetches, repeated at each read."""

    def readable(self) -> Set[str | bytes]:
        """Return names and ids of topics that need no check until the loop's next turn."""
        ...

    def refuses(self, target: FetchTarget) -> bool:
        """Return whether a partition is refused."""
        ...
