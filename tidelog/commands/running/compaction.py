"""``tidelog compaction status`` and ``tidelog compaction run TOPIC``: show the cleaner's state, and clean a topic now.

Both use the admin interface of one broker, whose address the broker returns (DescribeConfigs, ``admin.listener``).
"""

from __future__ import annotations

import time
from typing import Any

import click

from tidelog.admin_interface import find_admin
from tidelog.client import ClientError
from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.output import print_json, print_rows

WAIT_S = 24 * 3600.0
"""Timeout of an answer that comes when the logs are cleaned."""


@click.group(cls=Group)
def command() -> None:
    """Show what the cleaner does, or clean a topic now."""


@command.command("status")
@json_option
@client_options()
def status(*, settings: ClientSettings, as_json: bool) -> None:
    """Show the state of every compacted partition of which the broker has a replica."""
    show_status(settings, as_json=as_json)


@command.command("run")
@click.argument("topic", metavar="TOPIC")
@click.option("--wait", is_flag=True, help="wait until it is done and print the results")
@click.option("--dry-run", is_flag=True, help="change nothing, print what would be removed (waits)")
@json_option
@client_options()
def run_now(*, settings: ClientSettings, topic: str, wait: bool, dry_run: bool, as_json: bool) -> int:
    """Clean the broker's partitions of a topic now, due or not."""
    from urllib.parse import quote

    waits = wait or dry_run
    path = f"/compaction/{quote(topic, safe='')}?wait={int(waits)}&dry_run={int(dry_run)}"
    code, answer = ask(settings, "POST", path, WAIT_S if waits else settings.timeout_s)
    if "error" in answer:
        raise ClientError(answer["error"])
    if as_json:
        print_json(answer)
    elif not waits:
        print(f"{topic}: {answer['requested']} partitions will be cleaned")
    else:
        for entry in answer:
            print(result_line(entry))
    return 0 if code == 200 or not waits else 1


def admin_address(bootstrap: str) -> tuple[str, int]:
    """Ask the broker for the address of its admin interface. Raises ClientError, KafkaError."""
    found = find_admin(ClientSettings(bootstrap))
    return found.host, found.port


def ask(settings: ClientSettings, method: str, path: str, timeout_s: float) -> tuple[int, Any]:
    """Send one HTTP request to the admin interface; return (status, JSON). Raises ClientError, KafkaError, OSError."""
    return find_admin(settings).ask(settings.security, method, path, timeout_s)


def show_status(settings: ClientSettings, *, as_json: bool) -> None:
    """Print a table of the partitions, or their state as JSON."""
    status, partitions = ask(settings, "GET", "/compaction", settings.timeout_s)
    if status != 200:
        raise ClientError(f"the admin interface answered {status}: {partitions.get('error')}")
    if as_json:
        print_json(partitions)
        return
    columns = ["partition", "state", "dirty", "dirty_bytes", "from_offset", "lag_ms", "last_round"]
    print_rows(columns, [status_row(entry) for entry in partitions])


def status_row(entry: dict[str, Any]) -> dict[str, Any]:
    """Build the table row of one partition."""
    return {
        "partition": f"{entry['topic_partition']['topic']}-{entry['topic_partition']['partition']}",
        "state": entry["state"],
        "dirty": f"{entry['cleanable_ratio']:.0%}",
        "dirty_bytes": entry["dirty_bytes"],
        "from_offset": entry["first_dirty_offset"],
        "lag_ms": entry["compaction_lag_ms"],
        "last_round": describe_last_round(entry),
    }


def describe_last_round(entry: dict[str, Any]) -> str:
    """Describe the last round of a partition, its error, and when the next one is tried."""
    last = entry["last_round"]
    text = "never"
    if last is not None:
        ago_s = max(0, time.time() - last["finished_ms"] / 1000)
        text = (
            f"{ago_s:.0f} s ago: {last['bytes_before']} -> {last['bytes_after']} bytes, {last['records_before']} -> "
            f"{last['records_after']} records in {last['duration_ms']} ms, map {last['map_utilization']:.1%} full, "
            f"collisions {last['collision_rate']:.2f}{unreadable_text(last)}"
        )
    if entry["last_error"]:
        text += f"; {entry['last_error']}"
    if entry["retry_in_ms"] is not None:
        text += f"; next try in {entry['retry_in_ms'] / 1000:.0f} s"
    return text


def unreadable_text(done: dict[str, Any]) -> str:
    """Describe the batches that a round could not read; an empty text if there are none."""
    count = done["unreadable_batches"]
    if not count:
        return ""
    return f"; {count} unreadable {'batch' if count == 1 else 'batches'} kept, first: {done['unreadable'][0]}"


def result_line(entry: dict[str, Any]) -> str:
    """Format one round as a line."""
    name = f"{entry['topic']}-{entry['partition']}"
    if "error" in entry:
        return f"{name}: {entry['error']}"
    verb = "would go from" if entry["dry_run"] else "went from"
    return (
        f"{name} {verb} {entry['bytes_before']} to {entry['bytes_after']} bytes, "
        f"{entry['records_before']} to {entry['records_after']} records, in {entry['duration_ms']} ms"
        f"{unreadable_text(entry)}"
    )
