"""Generator of ``docs/command-line.md`` from the declarations of all commands.

python -m tidelog.command_page > docs/command-line.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from tidelog.commands.table import COMMANDS, root

HEAD = """# Commands

Generated from the commands' own declarations by `python -m tidelog.command_page`.
[first-steps.md](first-steps.md) shows them at work. Commands on topics, records, groups, configurations, users, quotas,
ACLs and transactions talk to any Kafka broker; only `find` needs the admin interface of Tidelog.

- **Broker**: `--bootstrap HOST:PORT[,...]`, else `TIDELOG_BOOTSTRAP`, else `bootstrap.servers` of the profile, else
  127.0.0.1:9092.
- **Profile**: a properties file with the keys of Kafka's clients: `--profile FILE`, else `TIDELOG_PROFILE`, else
  `tidelog/profile.properties` in `$XDG_CONFIG_HOME` or `~/.config`. [security.md](security.md#tidelogs-own-commands)
  has its keys for TLS and SASL.
- **Timeout**: `--timeout SECONDS` limits each wait for an answer. The default is 30 s, of `ping` 3 s, of `find` 60 s.
  `metadata describe` gives up after its `--timeout`, by default 10 s. `compaction run` waits up to a day with
  `--wait` or `--dry-run`.
- **Output**: text for people; with `--json` one JSON document, or an object a line (`consume`, `find`,
  `dump-log`). Headings are bold on a terminal, unless `NO_COLOR` is set.
- **Errors** are one line on standard error; `cluster start` adds the end of a node's log. Exit codes: 0 done,
  1 failure, 2 wrong usage or configuration, 130 interrupted, 141 the reader of standard output went away,
  143 `consume` was ended by SIGTERM.
- **Completion**: `source <(tidelog completion bash)`; `zsh` likewise; for fish
  `tidelog completion fish | source`.

`--bootstrap`, `--profile` and `--timeout` are left out below where a command has all three.
"""
COMMON = {"bootstrap", "profile", "timeout"}


def page() -> str:
    """Build the text of the page."""
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    lines += [f"| [`{name}`](#tidelog-{name}) | {entry.help} |" for name, entry in COMMANDS.items()]
    context = click.Context(root, info_name="tidelog")
    for name in COMMANDS:
        command = root.get_command(context, name)
        assert command is not None, name
        lines += describe(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(lines) + "\n"


def describe(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the lines for a command and for its subcommands."""
    level = "##" if context.parent is not None and context.parent.parent is None else "###"
    yield f"\n{level} {context.command_path}\n"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from describe(inner, click.Context(inner, info_name=name, parent=context))
        return
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"    {context.command_path} {pieces}\n"
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    is_client = {one.name for one in options} >= COMMON
    shown = [one for one in options if not (is_client and one.name in COMMON)]
    if shown:
        yield "| option | |"
        yield "|---|---|"
        yield from (option_row(option, context) for option in shown)


def option_row(option: click.Option, context: click.Context) -> str:
    """Build the table row of an option: its names, and its help with the default."""
    record = option.get_help_record(context)
    assert record is not None, option.name
    names, text = record
    return f"| `{escape(names)}` | {escape(text)} |"


def escape(text: str) -> str:
    """Put a text on one line and escape ``|``, for a table cell of Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
