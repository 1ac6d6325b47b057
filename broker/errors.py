"""Exceptions of the broker itself: why it does not start, and that a connection is to be closed."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start: what is in the way, and where."""


class CloseConnectionError(Exception):
    """A handler's way to say that the only honest answer is to close: a failed produce with acks=0."""
