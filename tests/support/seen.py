"""A record as each of the clients under test reports it, in any language."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a client reports it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
