"""Exceptions of the broker itself: for a failed start, and a connection to close."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start; the message says why."""


class CloseConnectionError(Exception):
    """The connection is to be closed without an answer, as after a failed produce with acks=0."""
