"""Completion of topic and group names in a shell, with names from the brokers that the typed command would ask.

The shell waits for it, so brokers have SHORT_S to answer, and after any failure nothing is completed. The client is
imported only for a completion.

Shells insert a completion without quotes, and any client can choose a group's name. So a name is left out
unless every shell reads it as one word and it begins with a letter, a digit or an underscore. ``x;reboot`` would be two
commands, ``--help`` an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidelog.client.cluster import Cluster

SHORT_S = 2.0
"""Timeout of each response, in seconds."""
_WORD = re.compile(r"\w[\w.:@%+,/-]*")
"""A name that every shell reads as one word."""


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics whose names begin with ``incomplete``; internal topics only if it begins with an underscore."""

    def names(cluster: Cluster) -> Iterable[str]:
        from tidelog.client.admin.topics import list_topics

        return [topic.name for topic in list_topics(cluster) if incomplete.startswith("_") or not topic.internal]

    return _complete(context, incomplete, names)


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups whose names begin with ``incomplete``."""

    def names(cluster: Cluster) -> Iterable[str]:
        from tidelog.client.admin.groups import list_groups

        return [group.group for group in list_groups(cluster)]

    return _complete(context, incomplete, names)


def _complete(context: click.Context, incomplete: str, names: Callable[[Cluster], Iterable[str]]) -> list[str]:
    from tidelog.client import ClientError
    from tidelog.client.cluster import Cluster
    from tidelog.client.settings import load_settings
    from tidelog.protocol.errors import KafkaError

    given = context.params
    try:
        settings = load_settings(given.get("bootstrap"), given.get("profile"), SHORT_S, os.environ)
        with Cluster.open(settings) as cluster:
            return sorted(name for name in names(cluster) if name.startswith(incomplete) and _WORD.fullmatch(name))
    except (ClientError, KafkaError, OSError):
        return []
