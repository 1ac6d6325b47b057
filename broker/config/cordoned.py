"""Cordoned log directories: no new log is created in them while another directory works (KIP-1066)."""

from __future__ import annotations

from collections.abc import Sequence

CORDONED_KEY = "cordoned.log.dirs"
ALL_DIRECTORIES = "*"


def find_cordoned(named: Sequence[str], log_dirs: Sequence[str]) -> list[str]:
    """Return the cordoned entries of ``log.dirs``. A dynamic value may name other paths, which are ignored."""
    return [path for path in log_dirs if path in named or ALL_DIRECTORIES in named]


def find_uncordonable(named: Sequence[str], log_dirs: Sequence[str]) -> str | None:
    """Return the first of the named directories that cannot be cordoned, None if all can."""
    if list(named) == [ALL_DIRECTORIES]:
        return None
    return next((path for path in named if path not in log_dirs), None)
