"""Failures of a command, each one line on standard error."""

from __future__ import annotations

import click

from tidelog.commands.frame.exit_codes import EXIT_USAGE


class CommandFailedError(click.ClickException):
    """A command failed; ``path`` is its full name, such as ``tidelog topic create``."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class WrongUseError(CommandFailedError):
    """A command failed because a setting or an argument is wrong."""

    exit_code = EXIT_USAGE


def describe_error(error: click.ClickException) -> str:
    """Build the line for a failure: the command and the error; for a UsageError also how to see the options."""
    if isinstance(error, CommandFailedError):
        return f"{error.path}: {error.message}"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "tidelog"
    message = " ".join(error.format_message().split()).rstrip(".")
    hint = f"; see {path} --help" if isinstance(error, click.UsageError) else ""
    return f"{path}: {message[:1].lower()}{message[1:]}{hint}"
