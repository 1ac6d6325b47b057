"""The table of commands; the module of a command is imported when it is called."""

from __future__ import annotations

import os
import sys

import click

from tidelog.commands.frame.commands import LazyGroup, Listed
from tidelog.commands.frame.completion_variable import COMPLETION_VARIABLE
from tidelog.commands.frame.errors import describe_error
from tidelog.commands.frame.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED

COMMANDS = {
    "serve": Listed("tidelog.commands.running.serve", "Run a broker."),
    "format": Listed("tidelog.commands.files.format", "Format a node's log directories for a cluster."),
    "ping": Listed("tidelog.commands.running.ping", "Ask a broker for its API versions; exit code 0 when it answers."),
    "status": Listed("tidelog.commands.manage.status", "Show in one screen what is in order and what is not."),
    "topic": Listed("tidelog.commands.manage.topic", "List, describe, create, change and delete topics."),
    "group": Listed("tidelog.commands.manage.group", "List, describe, reset and delete groups."),
    "config": Listed("tidelog.commands.manage.config", "Show and change configurations of topics, brokers and groups."),
    "user": Listed("tidelog.commands.manage.user", "List, create and delete users with a SCRAM password."),
    "quota": Listed("tidelog.commands.manage.quota", "List, set and unset client quotas."),
    "acl": Listed("tidelog.commands.manage.acl", "List, create and delete ACLs."),
    "transaction": Listed("tidelog.commands.manage.transaction", "List, describe and abort transactions."),
    "cluster": Listed(
        "tidelog.commands.manage.cluster", "Show a cluster's id, brokers and features; run one for development."
    ),
    "log-dirs": Listed(
        "tidelog.commands.manage.log_dirs", "Show brokers' log directories, and the bytes of each partition."
    ),
    "produce": Listed(
        "tidelog.commands.records.produce", "Write records to a topic: lines of standard input or of files."
    ),
    "consume": Listed("tidelog.commands.records.consume", "Read records of topics."),
    "find": Listed("tidelog.commands.records.find", "Find records by key, tag and time, newest first."),
    "compaction": Listed("tidelog.commands.running.compaction", "Show what the cleaner does, or clean a topic now."),
    "admin": Listed("tidelog.commands.running.admin", "Create tokens of the admin interface."),
    "metadata": Listed("tidelog.commands.manage.metadata", "Describe the metadata of a KRaft cluster."),
    "dump-log": Listed("tidelog.commands.files.dump_log", "Print segment files: batches, records, index entries."),
    "check": Listed("tidelog.commands.files.check", "Verify the logs of a stopped broker."),
    "adopt": Listed("tidelog.commands.files.adopt", "Take over the topics and offsets of a stopped Apache Kafka."),
    "pipeline": Listed("tidelog.commands.pipeline", "Export, audit, index, compact, replay and backfill logs."),
    "completion": Listed("tidelog.commands.completion", "Print the script that completes commands in a shell."),
    "version": Listed("tidelog.commands.version", "Print the versions of Tidelog, its dependencies and Python."),
    "help": Listed("tidelog.commands.help", "Show the help of a command."),
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
