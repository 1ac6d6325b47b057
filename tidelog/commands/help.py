"""``tidelog help COMMAND...``: the help of a command, as ``tidelog COMMAND... --help`` shows it."""

from __future__ import annotations

import click

from tidelog.commands.frame.commands import Command


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command."""
    shown = context.find_root()
    for word in words:
        found = shown.command.get_command(shown, word) if isinstance(shown.command, click.Group) else None
        if found is None:
            raise click.UsageError(f"{shown.command_path} has no command {word!r}", shown)
        shown = click.Context(found, info_name=word, parent=shown)
    click.echo(shown.get_help())
