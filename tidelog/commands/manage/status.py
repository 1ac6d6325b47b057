"""``tidelog status``: the state of a cluster on one screen: brokers, faulty partitions, lagging groups, disk space.

Exit code 1 means that a partition has no leader or a replica that is not in sync, or that a request failed. A failed
request about one broker or one group does not end the command. All requests are of Kafka's protocol, so any Kafka
broker answers them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.exit_codes import EXIT_FAILED
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.output import print_json, print_rows, visible_text

if TYPE_CHECKING:
    from tidelog.client.admin.groups import Group, ListedGroup
    from tidelog.client.admin.nodes import LogDir
    from tidelog.client.admin.topics import Topic
    from tidelog.client.cluster import Cluster

MAX_GROUPS = 50
"""Limit of the groups whose lag is looked up; a group with committed offsets takes about seven requests."""
MAX_FAILURES = 3
"""Failures after which the remaining groups are left out, as each may take the whole timeout."""
SHOWN_ROWS = 8
"""Rows of a table that are printed; JSON has all."""


@click.command(cls=Command)
@json_option
@client_options()
def command(*, settings: ClientSettings, as_json: bool) -> int:
    """Show brokers, faulty partitions, lagging groups and disk space on one screen."""
    from tidelog.client.admin.nodes import describe_cluster
    from tidelog.client.admin.topics import list_topics
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        found = describe_cluster(cluster)
        asked = ask_brokers(cluster)
        status = {
            "cluster": found.id,
            "controller": found.controller,
            "brokers": [broker._asdict() for broker in found.brokers],
            **partitions_in(list_topics(cluster)),
            **groups_in(asked.groups, describe_groups(cluster, asked)),
            "log_dirs": directories_in(asked.directories),
            "problems": asked.problems,
        }
    if as_json:
        print_json(status)
    else:
        show(status)
    return EXIT_FAILED if status["leaderless"] or status["under_replicated"] or status["problems"] else 0


class ClusterAnswers(NamedTuple):
    """Groups and log directories of all brokers, and a line for each failure."""

    groups: list[ListedGroup]
    directories: list[LogDir]
    problems: list[str]


def ask_brokers(cluster: Cluster) -> ClusterAnswers:
    """Ask each broker for its groups and directories. Raises what ``Cluster.brokers`` raises."""
    from tidelog.client.admin.groups import groups_at
    from tidelog.client.admin.nodes import log_dirs_at
    from tidelog.client.cluster import Trouble

    found = ClusterAnswers([], [], [])
    for node, address in sorted(cluster.brokers().items()):
        try:
            found.groups.extend(groups_at(cluster, address))
            found.directories.extend(log_dirs_at(cluster, node, address))
        except Trouble as error:
            found.problems.append(f"broker {node}: {error}")
    found.groups.sort()
    return found


def describe_groups(cluster: Cluster, asked: ClusterAnswers) -> list[Group]:
    """Describe up to MAX_GROUPS groups, and add a problem for each failure.

    A group that was deleted meanwhile is left out.
    """
    from tidelog.client.admin.groups import describe_group
    from tidelog.client.cluster import Trouble
    from tidelog.protocol.errors import GroupIdNotFoundError

    found, failures = [], 0
    for one in asked.groups[:MAX_GROUPS]:
        try:
            found.append(describe_group(cluster, one.group))
        except GroupIdNotFoundError:
            continue
        except Trouble as error:
            failures += 1
            asked.problems.append(f"group {one.group}: {error}")
        if failures == MAX_FAILURES:
            break
    return found


def partitions_in(topics: Sequence[Topic]) -> dict[str, Any]:
    """Count topics and partitions, and list the partitions without a leader or with replicas that are not in sync."""
    named = [(f"{topic.name}-{one.partition}", one) for topic in topics for one in topic.partitions]
    return {
        "topics": len(topics),
        "partitions": len(named),
        "leaderless": [name for name, one in named if one.leader < 0],
        "under_replicated": [name for name, one in named if one.leader >= 0 and len(one.isr) < len(one.replicas)],
    }


def groups_in(listed: Sequence[ListedGroup], groups: Sequence[Group]) -> dict[str, Any]:
    """Count the listed groups, the described groups, and the described groups in each state. List those with a lag, the
    largest first; ``lag`` is None if that of some partition is unknown. Groups of which no lag is known are not listed.
    """
    lagging = sorted((one for one in groups if one.lag), key=lambda one: (-one.lag, one.group))
    return {
        "groups": len(listed),
        "described": len(groups),
        "states": dict(sorted(Counter(one.state for one in groups).items())),
        "lagging": [
            {
                "group": one.group,
                "state": one.state,
                "members": len(one.members),
                "lag": one.lag if one.is_lag_known else None,
                "lag_at_least": one.lag,
            }
            for one in lagging
        ],
    }


def directories_in(directories: Sequence[LogDir]) -> list[dict[str, Any]]:
    """List log directories with the bytes of their partitions; ``free`` is None if the broker does not return it."""
    return [
        {
            "broker": one.broker,
            "directory": one.directory,
            "partitions": len(one.partitions),
            "size": sum(part.size for part in one.partitions),
            "free": None if one.usable < 0 else one.usable,
        }
        for one in directories
    ]


def show(status: dict[str, Any]) -> None:
    """Print the screen."""
    brokers = ", ".join(f"{one['id']} ({one['host']}:{one['port']})" for one in status["brokers"])
    print(f"cluster: {status['cluster']}, controller {status['controller']}")
    print(f"brokers: {brokers}")
    print(f"topics: {status['topics']}, {status['partitions']} partitions")
    for name in ("leaderless", "under_replicated"):
        if status[name]:
            print(f"{name.replace('_', '-')}: {shorten(status[name])}")
    states = ", ".join(f"{count} {state}" for state, count in status["states"].items())
    count = "" if status["described"] == status["groups"] else f", of which {status['described']} were described"
    print(f"groups: {status['groups']}{count}{f' ({states})' if states else ''}")
    if status["lagging"]:
        rows = [
            one if one["lag"] is not None else {**one, "lag": f"at least {one['lag_at_least']}"}
            for one in status["lagging"][:SHOWN_ROWS]
        ]
        print_rows(["group", "state", "members", "lag"], rows)
    print_rows(["broker", "directory", "partitions", "size", "free"], status["log_dirs"][:SHOWN_ROWS])
    for problem in status["problems"][:SHOWN_ROWS]:
        print(visible_text(problem))


def shorten(names: Sequence[str]) -> str:
    """List the first SHOWN_ROWS names, and the number of the others."""
    more = len(names) - SHOWN_ROWS
    return ", ".join(names[:SHOWN_ROWS]) + (f" and {more} more" if more > 0 else "")
