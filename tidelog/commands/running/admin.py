"""``tidelog admin token create``: creates bearer tokens of the admin interface in the file that the broker reads.

A line of the broker's ``admin.tokens.file`` has a token's digest, user, scope and expiry time. The token itself is only
printed.
"""

from __future__ import annotations

import os
import sys
import time

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import json_option
from tidelog.commands.frame.output import print_json

MAX_DAYS = 3650
DAY_S = 86_400


@click.group(cls=Group)
def command() -> None:
    """Create tokens of the admin interface."""


@command.group("token", cls=Group)
def token() -> None:
    """Create bearer tokens."""


@token.command("create")
@click.option(
    "--file", "path", metavar="FILE", required=True, help="the broker's admin.tokens.file; created if it is missing"
)
@click.option("--user", required=True, help="the user of the token, as in ACLs but without User:")
@click.option("--scope", type=click.Choice(["read", "write"]), default="read", show_default=True, help="what it allows")
@click.option(
    "--days", type=click.IntRange(1, MAX_DAYS), default=90, show_default=True, metavar="N", help="how long it is valid"
)
@json_option
def create(*, path: str, user: str, scope: str, days: int, as_json: bool) -> None:
    """Create a token and print it. Remove its line from the file to revoke it."""
    from tidelog.broker.admin.login.tokens import make_token

    if not user:
        raise click.UsageError("--user: expected a name")
    expires_s = int(time.time()) + days * DAY_S
    made, line = make_token(user, may_write=scope == "write", expires_s=expires_s)
    append_line(path, line)
    if as_json:
        print_json({"token": made, "user": user, "scope": scope, "expires": expires_s * 1000})
        return
    print(made)
    print(f"{user} may {scope} for {days} days", file=sys.stderr)


def append_line(path: str, line: str) -> None:
    """Append a line to a file of tokens, and sync the file; make it if it is missing. Raises UsageError, OSError."""
    from tidelog.broker.admin.login.tokens import is_token_file

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with open(descriptor, "rb", closefd=False) as file:
            before = file.read()
        if not is_token_file(before):
            raise click.UsageError(f"--file {path}: it has lines that are not tokens; expected the admin.tokens.file")
        joint = "\n" if before and not before.endswith(b"\n") else ""
        os.write(descriptor, (joint + line).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
