"""Commands and groups of the command line.

A ``LazyGroup`` has the name, the help line and the module of each command, and imports the module when the command is
called: ``tidelog --help`` imports none. A ``Command`` turns errors of clients and files into one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from tidelog.commands.frame.errors import CommandFailedError, WrongUseError


class Listing(NamedTuple):
    """The module that has a command as ``command``, and its help line in the list of commands."""

    module: str
    help: str


class Command(click.Command):
    """A command whose failures are one line each: no broker, an error from a broker, an error of a file."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises CommandFailedError, UsageError, and BrokenPipeError (of standard output, for one)."""
        from tidelog.client import ClientError, SettingsError
        from tidelog.client.wire import explain_os_error
        from tidelog.protocol.errors import KafkaError

        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # ``tidelog.cli`` returns EXIT_OUTPUT_CLOSED if standard output was closed
        except SettingsError as error:
            raise WrongUseError(ctx.command_path, str(error)) from error
        except (ClientError, KafkaError) as error:
            raise CommandFailedError(ctx.command_path, str(error)) from error
        except OSError as error:
            raise CommandFailedError(ctx.command_path, explain_os_error(error)) from error
        except UnicodeEncodeError:
            # The text may be a password: neither the message nor a cause, which would hold the text, shows it.
            raise WrongUseError(ctx.command_path, f"{_name_of_foreign_text(ctx)} is not UTF-8") from None


def _name_of_foreign_text(ctx: click.Context) -> str:
    """Return the option or argument with a text that UTF-8 cannot encode; "a text" if it came from elsewhere."""
    for parameter in ctx.command.params:
        if parameter.name is not None and _has_foreign_text(ctx.params.get(parameter.name)):
            is_option = isinstance(parameter, click.Option)
            return max(parameter.opts, key=len) if is_option else parameter.make_metavar(ctx).strip("[].")
    return "a text"


def _has_foreign_text(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_foreign_text, value))
    return isinstance(value, str) and any("\ud800" <= one <= "\udfff" for one in value)


class Group(click.Group):
    """A group whose commands are ``Command``s; without a command it prints its help and ends with a usage error."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, one whole line each."""
        names = self.list_commands(ctx)
        commands = [(name, self.help_line(ctx, name)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. Raises UsageError, which lists the commands."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            raise click.UsageError(f"no command {args[0]!r}; the commands are {', '.join(names)}", ctx)
        return super().resolve_command(ctx, args)

    def help_line(self, ctx: click.Context, name: str) -> str:
        """Return the line for a command in the list."""
        command = self.get_command(ctx, name)
        assert command is not None, name
        return command.get_short_help_str(limit=120)


class LazyGroup(Group):
    """A group whose commands are modules, imported when they are called."""

    def __init__(self, *, listed: Mapping[str, Listing], **options: Any) -> None:
        super().__init__(**options)
        self.listed = listed

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.listed)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when there is none of this name."""
        entry = self.listed.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = import_module(entry.module).command
        return command

    def help_line(self, ctx: click.Context, name: str) -> str:
        """Return the line of the table, which needs no import."""
        return self.listed[name].help
