"""``tidelog completion SHELL``: the script that completes commands and options in a shell."""

from __future__ import annotations

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.completion_variable import COMPLETION_VARIABLE


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    \b
    bash:  source <(tidelog completion bash)
    zsh:   source <(tidelog completion zsh)
    fish:  tidelog completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(context.find_root().command, {}, "tidelog", COMPLETION_VARIABLE).source())
