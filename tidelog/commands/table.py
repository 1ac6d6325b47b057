"""The table of commands; the module of a command is imported when it is called."""

from __future__ import annotations

import os
import sys

import click

from tidelog.commands.frame.commands import LazyGroup, Listing
from tidelog.commands.frame.completion_variable import COMPLETION_VARIABLE
from tidelog.commands.frame.errors import describe_error
from tidelog.commands.frame.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED

COMMANDS = {
    "serve": Listing("tidelog.commands.running.serve", "Run a broker."),
    "format": Listing("tidelog.commands.files.format", "Format a node's log directories for a cluster."),
    "ping": Listing("tidelog.commands.running.ping", "Ask a broker for its API versions; exit code 0 when it answers."),
    "status": Listing(
        "tidelog.commands.manage.status",
        "Show brokers, faulty partitions, lagging groups and disk space on one screen.",
    ),
    "topic": Listing("tidelog.commands.manage.topic", "List, describe, create, change and delete topics."),
    "group": Listing("tidelog.commands.manage.group", "List, describe, reset and delete groups."),
    "config": Listing("tidelog.commands.manage.config", "Show and change configs of topics, brokers and groups."),
    "user": Listing("tidelog.commands.manage.user", "List, create and delete users with a SCRAM password."),
    "quota": Listing("tidelog.commands.manage.quota", "List, set and unset client quotas."),
    "acl": Listing("tidelog.commands.manage.acl", "List, create and delete ACLs."),
    "transaction": Listing("tidelog.commands.manage.transaction", "List, describe and abort transactions."),
    "cluster": Listing(
        "tidelog.commands.manage.cluster", "Show a cluster's id, brokers and features; run one for development."
    ),
    "log-dirs": Listing(
        "tidelog.commands.manage.log_dirs", "Show brokers' log directories, and the bytes of each partition."
    ),
    "produce": Listing(
        "tidelog.commands.records.produce", "Write records to a topic: lines of standard input or of files."
    ),
    "consume": Listing("tidelog.commands.records.consume", "Read records of topics."),
    "find": Listing("tidelog.commands.records.find", "Find records by key, tag and time, newest first."),
    "compaction": Listing("tidelog.commands.running.compaction", "Show what the cleaner does, or clean a topic now."),
    "admin": Listing("tidelog.commands.running.admin", "Create tokens of the admin interface."),
    "metadata": Listing("tidelog.commands.manage.metadata", "Describe the metadata of a KRaft cluster."),
    "dump-log": Listing("tidelog.commands.files.dump_log", "Print segment files: batches, records, index entries."),
    "check": Listing("tidelog.commands.files.check", "Verify the logs of a stopped broker."),
    "adopt": Listing("tidelog.commands.files.adopt", "Take over the topics and offsets of a stopped Apache Kafka."),
    "pipeline": Listing("tidelog.commands.pipeline", "Export, audit, index, compact, replay and backfill logs."),
    "completion": Listing("tidelog.commands.completion", "Print the script that completes commands in a shell."),
    "version": Listing("tidelog.commands.version", "Print the versions of Tidelog, uvloop, numpy and Python."),
    "help": Listing("tidelog.commands.help", "Show the help of a command."),
}
root = LazyGroup(
    name="tidelog",
    listed=COMMANDS,
    help="A Kafka broker in Python, and commands for any Kafka broker.",
    epilog="tidelog COMMAND --help lists a command's options.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def dispatch(words: list[str]) -> int:
    """Run the command that the arguments name, and print a failure in one line. Returns the exit code."""
    if COMPLETION_VARIABLE in os.environ:
        root.main(words, prog_name="tidelog", complete_var=COMPLETION_VARIABLE)
    if sys.stdout is None:  # before anything is done whose result would be lost
        print("tidelog: standard output is closed: expected it open, or > /dev/null", file=sys.stderr)
        return EXIT_FAILED
    try:
        with root.make_context("tidelog", words) as context:
            return root.invoke(context) or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        print(describe_error(error), file=sys.stderr)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
