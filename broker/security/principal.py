"""The identity of a client, as Kafka's KafkaPrincipal names it."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
"""The type of every principal that Kafka's own principal builder returns."""


class Principal(NamedTuple):
    """Type and name of one client. ACLs, quotas and delegation tokens are written for it."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The identity of a client that has not authenticated."""
