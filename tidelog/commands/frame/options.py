"""Options that commands share: the brokers to connect to, ``--json``, and parameter types with clear errors."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeVar, cast

import click

from tidelog.client.settings import ClientSettings, load_settings
from tidelog.client.wire import ClientError, SettingsError
from tidelog.commands.frame.exit_codes import EXIT_FAILED

BOOTSTRAP_VARIABLE = "TIDELOG_BOOTSTRAP"
DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 86_400.0

_Function = TypeVar("_Function", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="JSON in place of text")


class Seconds(click.ParamType[float]):
    """A timeout in seconds, above 0."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number of seconds. Raises BadParameter."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= MAX_TIMEOUT_S:
            self.fail(f"{value!r}: expected seconds above 0, at most {MAX_TIMEOUT_S:g}", param, ctx)
        return seconds


class Moment(click.ParamType[int]):
    """A time as people write it, in ms since 1970; times of the day are in the time zone of this machine."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a time. Raises BadParameter."""
        from tidelog.log.find.times import parse_time

        if isinstance(value, int):
            return value
        try:
            return parse_time(value, round(time.time() * 1000))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def bootstrap_option(function: _Function) -> _Function:
    """Add ``--bootstrap``, whose value is None if neither the option nor the variable is given."""
    return click.option(
        "-b",
        "--bootstrap",
        "--bootstrap-server",
        "bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT[,...]",
        help=f"the brokers to begin with; default: ${BOOTSTRAP_VARIABLE}, the profile, or 127.0.0.1:9092",
    )(function)


def source_of_bootstrap() -> str:
    """Return the name of the option or the variable that gave the current command its brokers, for errors."""
    source = click.get_current_context().get_parameter_source("bootstrap")
    return BOOTSTRAP_VARIABLE if source is click.core.ParameterSource.ENVIRONMENT else "--bootstrap"


def client_options(default_timeout_s: float = DEFAULT_TIMEOUT_S) -> Callable[[_Function], _Function]:
    """Add ``--bootstrap``, ``--profile`` and ``--timeout``; the function gets them as ``settings``."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def with_settings(*, bootstrap: str | None, profile: str | None, timeout: float, **given: Any) -> Any:
            settings = load_settings(bootstrap, profile, timeout, os.environ, source_of_bootstrap())
            return function(settings=settings, **given)

        decorated = click.option(
            "--timeout",
            type=Seconds(),
            default=default_timeout_s,
            metavar="SECONDS",
            help="wait this long for an answer",
            show_default=True,
        )(with_settings)
        decorated = click.option(
            "--profile",
            "--command-config",
            "profile",
            metavar="FILE",
            help="client properties; default: $TIDELOG_PROFILE, or tidelog/profile.properties in ~/.config",
        )(decorated)
        return bootstrap_option(cast(_Function, decorated))

    return decorate


def check_order(begin_ms: int | None, end_ms: int | None) -> None:
    """Raise UsageError if ``--from`` is after ``--to``."""
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise click.UsageError(f"--from is after --to: {begin_ms} and {end_ms} ms since 1970")


def encode(text: str | None) -> bytes | None:
    """Encode an option's text: the bytes of the command line, UTF-8 or not. None if the option is not given."""
    return None if text is None else os.fsencode(text)


def standard_input() -> BinaryIO:
    """Return standard input as bytes. Raises ClientError if it is closed."""
    if sys.stdin is None:
        raise ClientError("standard input is closed")
    return sys.stdin.buffer


def read_text(path: str) -> str:
    """Read a file in UTF-8. Raises SettingsError for other bytes, OSError."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: expected a text in UTF-8") from None


def key_value_pairs(texts: Iterable[str], option: str) -> list[tuple[str, str]]:
    """Parse ``KEY=VALUE`` texts. Raises UsageError, which names the option, and not the text: it may be a password that
    a space cuts off from its key."""
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option}: expected KEY=VALUE, found a text without key or equals sign")
        found.append((key, value))
    return found


def key_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse ``KEY=VALUE`` texts, of which the last one of a key counts. Raises UsageError, which names the option."""
    return dict(key_value_pairs(texts, option))


def each_of(names: Iterable[str], act: Callable[[str], None]) -> int:
    """Call ``act`` with each name, and print a line for each failure. Returns the exit code.

    ClientError ends the loop: if no broker can be reached, the rest would fail as well. It is not raised, so that the
    caller prints what was done before. Raises SettingsError.
    """
    from tidelog.protocol.errors import KafkaError

    code = 0
    for name in names:
        try:
            act(name)
        except SettingsError:
            raise
        except (KafkaError, ClientError) as error:
            print(f"{click.get_current_context().command_path}: {error}", file=sys.stderr)
            code = EXIT_FAILED
            if isinstance(error, ClientError):
                break
    return code


__all__ = [
    "ClientSettings",
    "Moment",
    "Seconds",
    "bootstrap_option",
    "check_order",
    "client_options",
    "each_of",
    "encode",
    "json_option",
    "key_value_pairs",
    "key_values",
    "read_text",
    "standard_input",
]
