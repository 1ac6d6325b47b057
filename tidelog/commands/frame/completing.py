"""Names of topics and groups that a shell completes, asked of the brokers that the words so far name.

A shell waits for it, so brokers have SHORT_S to answer, and whatever fails completes nothing. Imported when a shell
asks, like the client.

Shells put a completion in the line as it is, and any client chooses the name of its group. So names are left out that
a shell would take for more than a word, such as ``x;reboot``, or a command for an option.
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
"""Time-out of each answer."""
_WORD = re.compile(r"\w[\w.:@%+,/-]*")
"""A name that every shell takes as it is."""


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics whose names begin so; internal ones where the name so far does."""

    def names(cluster: Cluster) -> Iterable[str]:
        from tidelog.client.admin.topics import list_topics

        return [topic.name for topic in list_topics(cluster) if incomplete.startswith("_") or not topic.internal]

    return _complete(context, incomplete, names)


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups whose names begin so."""

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
