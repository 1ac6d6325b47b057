"""``tidelog find``: prints records of a topic by key, tag or time."""

from __future__ import annotations

import sys

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.completing import complete_topics
from tidelog.commands.frame.options import ClientSettings, Moment, check_order, client_options, encode, json_option
from tidelog.commands.frame.records import json_line, text_line
from tidelog.find import TIMEOUT_S, Tidelog

DEFAULT_MAX = 100


@click.command(cls=Command)
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--key", metavar="KEY", help="records with exactly this key (the topic needs index.keys=true)")
@click.option("--tag", metavar="TAG", help="records with this value in the header that index.tag.header names")
@click.option("--from", "begin", type=Moment(), metavar="TIME",
              help="only records of this time or later: ms, ISO 8601, 09:00, or 15m for 15 minutes ago")  # fmt: skip
@click.option("--to", "end", type=Moment(), metavar="TIME", help="only records of this time or earlier")
@click.option(
    "--max",
    "max_records",
    type=click.IntRange(1),
    default=DEFAULT_MAX,
    metavar="N",
    show_default=True,
    help="at most N records, the newest ones",
)
@click.option("--all", "everything", is_flag=True, help="all records that match: --max has no effect")
@click.option("--no-wait", is_flag=True, help="answer at once, even if the index has not caught up")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed leaves out records of open and aborted transactions",
)
@json_option
@client_options(TIMEOUT_S)
def command(
    *,
    settings: ClientSettings,
    topic: str,
    key: str | None,
    tag: str | None,
    begin: int | None,
    end: int | None,
    max_records: int,
    everything: bool,
    no_wait: bool,
    isolation: str,
    as_json: bool,
) -> None:
    """Find records by key, tag and time, newest first."""
    check_order(begin, end)
    count = 0
    client = Tidelog(settings.bootstrap, security=settings.security, timeout_s=settings.timeout_s)
    for record in client.find(
        topic,
        key=encode(key),
        tag=encode(tag),
        begin=begin,
        end=end,
        max_records=None if everything else max_records,
        wait=not no_wait,
        isolation=isolation,
    ):
        print(json_line(record) if as_json else text_line(record))
        count += 1
    if not as_json and not count:
        print("nothing found", file=sys.stderr)
