"""Exceptions of the broker itself: why it does not start, that a connection is to be closed, that a log is not open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.protocol.errors import CoordinatorLoadInProgressError

if TYPE_CHECKING:
    from tidelog.broker.loop.deferred import Deferred


class StartError(Exception):
    """The broker cannot start: what is in the way, and where."""


class CloseConnectionError(Exception):
    """The connection is to be closed without an answer, as after a failed produce with acks=0."""


class NotReadyError(CoordinatorLoadInProgressError):
    """A log that a request needs is being opened: handle the request again once ``ready`` is settled.

    For a request of which nothing was done. Where it is met in one part of a request, that part's client tries again.
    """

    def __init__(self, ready: Deferred[None]) -> None:
        super().__init__()
        self.ready = ready
