"""Exceptions of the broker itself: for a failed start, a connection to close, and a log that is not open yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.protocol.errors import CoordinatorLoadInProgressError

if TYPE_CHECKING:
    from tidelog.broker.loop.deferred import Deferred


class StartError(Exception):
    """The broker cannot start; the message says why, and names the file or key."""


class CloseConnectionError(Exception):
    """The connection is to be closed without an answer, as after a failed produce with acks=0."""


class NotReadyError(CoordinatorLoadInProgressError):
    """A log that a request needs is being opened: handle the request again once ``ready`` is settled.

    A handler raises it before it has done anything of the request. If it concerns only some partitions of a request,
    the client retries these.
    """

    def __init__(self, ready: Deferred[None]) -> None:
        super().__init__()
        self.ready = ready
