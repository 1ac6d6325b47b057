"""``tidelog adopt DIR... --data-dir DATA``: take over the partition directories of a stopped Apache Kafka.

Everything is looked at before anything is written, and the source is only read; docs/moving-from-kafka.md has the whole
way. Exit codes: 0 taken over (or nothing left to do); 1 something stands against it, nothing was taken over.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.adoption.plan import AdoptionOptions, AdoptionPlan

HELP = "take over the topics, offsets and transactions of a stopped Apache Kafka"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="DIR", help="log.dirs of the stopped broker; give all of them")
    parser.add_argument("--data-dir", required=True, metavar="DATA", help="Tidelog's data directory; made if missing")
    parser.add_argument(
        "--copy", dest="link", action="store_false", help="copy everything; DIR stays as it is (the default)"
    )
    parser.add_argument(
        "--link",
        action="store_true",
        help="share the files that never change again by hard links: no room, no time, same file system",
    )
    parser.add_argument("--dry-run", action="store_true", help="check and tell what would be done; write nothing")
    parser.add_argument("--node-id", type=int, default=1, metavar="N", help="Tidelog's node.id; default: %(default)s")
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="TOPIC", help="go without this topic; may be repeated"
    )
    parser.add_argument(
        "--topic-configs",
        metavar="FILE",
        help="what kafka-configs --describe --entity-type topics printed: for brokers that used ZooKeeper",
    )
    parser.set_defaults(link=False)


def run(arguments: argparse.Namespace) -> int:
    from tidelog.broker.adoption.adopt import carry_out
    from tidelog.broker.adoption.plan import AdoptionError, make_plan
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.log.system.time import SystemTime
    from tidelog.protocol.errors import KafkaStorageError

    os.umask(0o077)  # as a broker makes its directories (log.dirs.mode)
    file_system, time = OsFileSystem(), SystemTime()
    try:
        plan = make_plan(file_system, time, options_of(arguments))
        try:
            report(plan)
            if plan.problems:
                print("nothing was taken over", file=sys.stderr)
                return 1
            if arguments.dry_run or not plan.topics:
                print("dry run: nothing was written" if arguments.dry_run else "nothing to do")
                return 0
            carry_out(file_system, time, plan, print)
        finally:
            plan.close()
    except (AdoptionError, KafkaStorageError, OSError) as error:
        print(f"tidelog adopt: {error}; nothing was taken over", file=sys.stderr)
        return 1
    print(f"done: tidelog serve --data-dir {arguments.data_dir}")
    return 0


def options_of(arguments: argparse.Namespace) -> AdoptionOptions:
    """The command line as options. Raises OSError when the file of configs cannot be read."""
    from tidelog.broker.adoption.plan import AdoptionOptions
    from tidelog.broker.metadata.topic_descriptions import parse_topic_configs

    configs = None
    if arguments.topic_configs is not None:
        with open(arguments.topic_configs, encoding="utf-8") as file:
            configs = parse_topic_configs(file.read())
    return AdoptionOptions(
        tuple(arguments.sources),
        arguments.data_dir,
        node_id=arguments.node_id,
        link=arguments.link,
        leave_out=frozenset(arguments.leave_out),
        topic_configs=configs,
    )


def report(plan: AdoptionPlan) -> None:
    """Print the plan: topics and notes to standard output, problems to standard error."""
    if plan.identity is not None:
        print(f"cluster {plan.identity.cluster_id}, node {plan.identity.node_id}")
    for topic in plan.topics:
        configs = " ".join(f"{key}={text}" for key, text in sorted(topic.configs.items()))
        print(f"topic {topic.name}: {len(topic.partitions)} partitions, {topic.size_bytes:,} bytes {configs}".rstrip())
    for text in plan.notes:
        print(f"note: {text}")
    for text in plan.left_out:
        print(f"left out: {text}")
    for text in plan.problems:
        print(f"problem: {text}", file=sys.stderr)
