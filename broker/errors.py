"""Why a broker does not start; told in one line on the command line."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start: what is in the way, and where."""
