"""``tidelog adopt DIR... --data-dir DATA``: take over the partition directories of a stopped Apache Kafka.

The directories are checked before anything is written, and each copy after its recovery. The directories of Kafka are
only read; docs/moving-from-kafka.md describes all steps.

Exit codes: 0 taken over, nothing to do, or a dry run without problems; 1 a problem was found, or an error occurred; 2
wrong options.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import json_option, read_text
from tidelog.commands.frame.output import print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.broker.adoption.plan import AdoptionOptions, AdoptionPlan

NODE_ID = click.IntRange(0, 2**31 - 1)


@click.command(cls=Command)
@click.argument("sources", metavar="DIR...", nargs=-1, required=True)
@click.option("--data-dir", required=True, metavar="DATA", help="Tidelog's data directory; made if missing")
@click.option(
    "--copy/--link",
    "copy",
    default=True,
    help="copy everything, so that DIR stays as it is (the default); or share the files that never change again by "
    "hard links: takes no space and no time, needs the same file system",
)
@click.option("--dry-run", is_flag=True, help="check and tell what would be done; write nothing")
@click.option("--node-id", type=NODE_ID, default=1, metavar="N", show_default=True, help="Tidelog's node.id")
@click.option("--leave-out", multiple=True, metavar="TOPIC", help="leave this topic out; may be repeated")
@click.option(
    "--topic-configs",
    metavar="FILE",
    help="what kafka-configs --describe --entity-type topics printed: for brokers that used ZooKeeper",
)
@json_option
def command(
    *,
    sources: tuple[str, ...],
    data_dir: str,
    copy: bool,
    dry_run: bool,
    node_id: int,
    leave_out: tuple[str, ...],
    topic_configs: str | None,
    as_json: bool,
) -> int:
    """Take over the topics and offsets of a stopped Apache Kafka.

    DIR are the log.dirs of the stopped broker; give all of them.
    """
    from tidelog.broker.adoption.adopt import UnsyncedError
    from tidelog.broker.adoption.plan import AdoptionError, AdoptionOptions
    from tidelog.protocol.errors import KafkaStorageError

    os.umask(0o077)  # as a broker with the default log.dirs.mode, 0700
    try:
        options = AdoptionOptions(
            sources,
            data_dir,
            node_id=node_id,
            link=not copy,
            leave_out=frozenset(leave_out),
            topic_configs=None if topic_configs is None else read_topic_configs(topic_configs),
        )
        plan, is_adopted = plan_and_adopt(options, dry_run=dry_run, as_json=as_json)
    except (AdoptionError, KafkaStorageError, OSError) as error:
        return fail(f"{error}; nothing was taken over")
    except UnsyncedError as error:
        return fail(f"{error}; everything was taken over, or nothing: run the command again")
    if as_json:
        print_json(describe_plan(plan, is_adopted=is_adopted))
    else:
        conclude(plan, dry_run=dry_run)
    return 1 if plan.problems else 0


def fail(text: str) -> int:
    """Print an error; return the exit code."""
    print(f"tidelog adopt: {text}", file=sys.stderr)
    return 1


def plan_and_adopt(options: AdoptionOptions, *, dry_run: bool, as_json: bool) -> tuple[AdoptionPlan, bool]:
    """Plan an adoption and carry it out, unless it is a dry run, has problems or has no topics.

    Returns the plan, and whether it was carried out. Raises AdoptionError, KafkaStorageError, OSError, UnsyncedError.
    """
    from tidelog.broker.adoption.adopt import carry_out
    from tidelog.broker.adoption.plan import make_plan
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.log.system.time import SystemTime

    file_system, time = OsFileSystem(), SystemTime()
    plan = make_plan(file_system, time, options)
    try:
        plan.notes.extend(ownership_notes(options.target, is_shared=options.link))
        if not as_json:
            report(plan)
        is_to_do = not (plan.problems or dry_run or not plan.topics)
        if is_to_do:
            carry_out(file_system, time, plan, tell if as_json else print)
    finally:
        plan.close()
    return plan, is_to_do


def ownership_notes(data_dir: str, *, is_shared: bool) -> list[str]:
    """Return notes for root, whose files of mode 0600 a broker of another user cannot open."""
    if os.geteuid() != 0:
        return []
    notes = [f"only root can serve {data_dir}; for a broker of another user: chown -R USER {data_dir}"]
    if is_shared:
        notes.append("with --link Kafka's own record files change their owner too: chown when Kafka is done with them")
    return notes


def tell(line: str) -> None:
    """Print progress to standard error: with ``--json`` standard output has only the JSON document."""
    print(line, file=sys.stderr)


def conclude(plan: AdoptionPlan, *, dry_run: bool) -> None:
    """Print the result of the adoption, and the command that serves the data directory."""
    if plan.problems:
        print("nothing was taken over", file=sys.stderr)
    elif dry_run:
        print("dry run: nothing was written")
    else:
        print(f"done: tidelog serve --data-dir {plan.options.target}" if plan.topics else "nothing to do")


def describe_plan(plan: AdoptionPlan, *, is_adopted: bool) -> dict[str, Any]:
    """Describe a plan, and whether it was carried out, as JSON."""
    from tidelog.broker.metadata.image import INTERNAL_TOPICS

    return {
        "adopted": is_adopted,
        "cluster_id": None if plan.identity is None else plan.identity.cluster_id,
        "node_id": None if plan.identity is None else plan.identity.node_id,
        "topics": [
            {
                "name": topic.name,
                "internal": topic.name in INTERNAL_TOPICS,
                "partitions": len(topic.partitions),
                "bytes": topic.size_bytes,
                "configs": topic.configs,
            }
            for topic in plan.topics
        ],
        "notes": plan.notes,
        "left_out": plan.left_out,
        "problems": plan.problems,
    }


def read_topic_configs(path: str) -> Mapping[str, Mapping[str, str]]:
    """Read the topics' configurations from the output of Kafka's tool. Raises SettingsError, OSError."""
    from tidelog.commands.files.topic_descriptions import parse_topic_configs

    return parse_topic_configs(read_text(path))


def report(plan: AdoptionPlan) -> None:
    """Print the plan: topics and notes to standard output, problems to standard error."""
    if plan.identity is not None:
        print(f"cluster {plan.identity.cluster_id}, node {plan.identity.node_id}")
    from tidelog.broker.metadata.image import INTERNAL_TOPICS

    for topic in plan.topics:
        if topic.name in INTERNAL_TOPICS:
            continue
        configs = " ".join(f"{key}={text}" for key, text in sorted(topic.configs.items()))
        print(f"topic {topic.name}: {len(topic.partitions)} partitions, {topic.size_bytes:,} bytes {configs}".rstrip())
    internal = [topic for topic in plan.topics if topic.name in INTERNAL_TOPICS]
    if internal:
        names = ", ".join(f"{topic.name} ({len(topic.partitions)} partitions)" for topic in internal)
        print(f"internal topics: {names}, {sum(topic.size_bytes for topic in internal):,} bytes")
    for text in plan.notes:
        print(f"note: {text}")
    for text in plan.left_out:
        print(f"left out: {text}")
    for text in plan.problems:
        print(f"problem: {text}", file=sys.stderr)
