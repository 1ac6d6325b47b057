"""The authorizer's part of a connection's context: its cached decisions about the client, and the check of fetches.

A *generation* is the time in which decisions stay valid, from one change of the ACLs, or of a logger's level, to the
next. The authorizer has an object for it, which is compared by identity. *Shortcuts* are faster checks of frequent
requests (Produce, Fetch, Metadata): they allow the topics of three sets at once, and ask the authorizer only about
others. Loop thread only.
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
    """Cached decisions about one client, which its connections share. They are of one generation at a time."""

    __slots__ = (
        "__weakref__",
        "any_of_type",
        "by_operation",
        "cached_count",
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
        """Drop all cached decisions, as a generation has begun, or too many are cached in the present one."""
        self.generation = generation
        """The generation of the cached decisions; they count only while it is the authorizer's."""
        self.verdicts: dict[int, dict[str, Decision]] = {}
        """Operation and resource type as one number -> resource name -> decision."""
        self.any_of_type: dict[int, bool] = {}
        """The same number -> whether the client may do the operation with at least one resource of the type."""
        self.writable: set[str | bytes] = set()
        """Names and ids of topics that shortcuts let the client WRITE, without an audit line."""
        self.readable: set[str | bytes] = set()
        """The same for READ."""
        self.describable: set[str | bytes] = set()
        """The same for DESCRIBE."""
        self.by_operation = {_WRITE: self.writable, _READ: self.readable, _DESCRIBE: self.describable}
        self.cached_count = 0
        """Number of decisions in ``verdicts`` and of topics in the three sets. The authorizer limits it."""


class FetchGuard(Protocol):
    """Check of the partitions that one connection fetches, repeated at each read."""

    def readable(self) -> Set[str | bytes]:
        """Return names and ids of topics that need no check until the loop's next turn."""
        ...

    def refuses(self, target: FetchTarget) -> bool:
        """Return whether a partition is refused."""
        ...
