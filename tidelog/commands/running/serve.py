"""The options of ``tidelog serve``; ``serve_process.py`` runs the broker."""

from __future__ import annotations

from typing import Any

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.running.serve_process import LOG_LEVELS, ServeWords, environment_level, run


@click.command(cls=Command)
@click.option("--data-dir", metavar="DIR", help="where partitions and metadata live; default: log.dirs, or data")
@click.option("--host", metavar="HOST", help="the address to listen on; default: listeners, or 127.0.0.1")
@click.option("--port", type=int, metavar="N", help="the port; 0 takes a free one; default: listeners, or 9092")
@click.option("--config", "config_file", metavar="FILE", help="a server.properties file")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="one configuration key; may be given many times; wins over --config and KAFKA_* variables",
)
@click.option(
    "--until-stdin-closes",
    is_flag=True,
    help="also stop when standard input closes, so that the broker does not outlive the process that started it",
)
@click.option(
    "--strict",
    is_flag=True,
    help="refuse to start with a weakness of security that is a warning otherwise (docs/security.md)",
)
@click.option(
    "--laboratory",
    type=click.IntRange(0),
    hidden=True,
    help="the descriptor of a socket through which tests control the broker (docs/laboratory.md)",
)
@click.option(
    "--laboratory-listener",
    metavar="HOST:PORT",
    help="for tests alone: the loopback address where they move the clock and inject faults (docs/laboratory.md)",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default=environment_level,
    help="default: KAFKA_LOG4J_ROOT_LOGLEVEL, or info",
)
def command(**options: Any) -> int:
    """Run a broker."""
    return run(ServeWords(**options))
