"""``tidelog user``: SCRAM credentials of the users of any Kafka cluster."""

from __future__ import annotations

import warnings
from getpass import GetPassWarning

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import ClientSettings, client_options, json_option, standard_input
from tidelog.commands.frame.output import print_json, print_rows

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms of ``tidelog.client.admin.users``, which is not imported for a help text."""
_NOT_UTF8 = "expected a password in UTF-8"
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
"""Kafka's limits of the iterations of a SCRAM credential."""


@click.group(cls=Group)
def command() -> None:
    """List, create and delete users with a SCRAM password."""


@command.command("list")
@click.argument("names", metavar="[USER]...", nargs=-1)
@json_option
@client_options()
def list_all(*, settings: ClientSettings, names: tuple[str, ...], as_json: bool) -> None:
    """List users and their mechanisms."""
    from tidelog.client.admin.users import list_credentials
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        rows = [one._asdict() for one in list_credentials(cluster, names or None)]
    if as_json:
        print_json(rows)
    else:
        print_rows(["user", "mechanism", "iterations"], rows)


@command.command("create")
@click.argument("name", metavar="USER")
@click.option(
    "--mechanism", type=click.Choice(MECHANISMS), default=MECHANISMS[0], show_default=True, help="the SCRAM mechanism"
)
@click.option(
    "--password", metavar="TEXT", help="the password; other users of this machine may see it, a prompt is safer"
)
@click.option("--password-stdin", is_flag=True, help="the password is the first line of standard input")
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    metavar="N",
    help="rounds of hashing",
)
@json_option
@client_options()
def create(
    *,
    settings: ClientSettings,
    name: str,
    mechanism: str,
    password: str | None,
    password_stdin: bool,
    iterations: int,
    as_json: bool,
) -> None:
    """Create a user, or give one a new password. Without a password option the command asks for it."""
    from tidelog.client.admin.users import set_password
    from tidelog.client.cluster import Cluster

    if password is not None and password_stdin:
        raise click.UsageError("expected one of --password and --password-stdin")
    if password_stdin:
        password = read_password()
    elif password is None:
        password = ask_password()
    if not password:
        raise click.UsageError("expected a password that is not empty")
    with Cluster.open(settings) as cluster:
        set_password(cluster, name, mechanism, password, iterations)
    if as_json:
        print_json({"user": name, "mechanism": mechanism, "iterations": iterations})
    else:
        print(f"user {name} has a password for {mechanism}")


def read_password() -> str:
    """Read a password from the first line of standard input. Raises UsageError, ClientError."""
    try:
        return standard_input().readline().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.UsageError("--password-stdin: expected a password in UTF-8") from None


def ask_password() -> str:
    """Ask for a password, twice. Raises UsageError without a terminal, as the input could be seen, and if the password
    is not UTF-8.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", GetPassWarning)
        try:
            password = str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
            password.encode()
        except GetPassWarning:
            raise click.UsageError("no terminal to ask for the password: expected --password-stdin") from None
        except UnicodeError:  # raised by reading, or by ``encode`` if reading turned the bytes into surrogates
            raise click.UsageError(_NOT_UTF8) from None
    return password


@command.command("delete")
@click.argument("name", metavar="USER")
@click.option("--mechanism", type=click.Choice(MECHANISMS), help="for this mechanism alone; default: all the user has")
@json_option
@client_options()
def delete(*, settings: ClientSettings, name: str, mechanism: str | None, as_json: bool) -> None:
    """Delete a user's passwords."""
    from tidelog.client.admin.users import delete_credentials, list_credentials
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        mechanisms = [mechanism] if mechanism else [one.mechanism for one in list_credentials(cluster, [name])]
        delete_credentials(cluster, name, mechanisms)
    if as_json:
        print_json({"user": name, "mechanisms": mechanisms, "deleted": True})
    else:
        print(f"deleted the password of user {name} for {', '.join(mechanisms)}")
