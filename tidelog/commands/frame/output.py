"""Output of results: JSON for programs, aligned columns for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as aligned columns under a heading; numbers are aligned to the right, None is a dash.

    ``columns`` are keys of the rows; headings are the keys in upper case, with hyphens.
    """
    table = [[_text(row.get(column)) for column in columns] for row in rows]
    numeric = [all(_is_number(line[index]) for line in table) for index in range(len(columns))]
    headings = [column.replace("_", "-").upper() for column in columns]
    widths = [max(len(line[index]) for line in [headings, *table]) for index in range(len(columns))]
    print(_style(_line(headings, widths, numeric)))
    for line in table:
        print(_line(line, widths, numeric))


def visible_text(text: str) -> str:
    """Return a text in which control characters are escaped: clients choose names of groups and ids of their own."""
    if text.isprintable():
        return text
    from tidelog.broker.security.log_lines import escape

    return escape(text)


def number_text(value: float) -> str:
    """Format a number with all its digits, a whole number without a point."""
    return f"{value:.0f}" if float(value).is_integer() else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return "  ".join(parts).rstrip()


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return visible_text(",".join(map(str, value))) or "-"
    return visible_text(str(value))


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").replace(".", "", 1).isdigit()


def _style(heading: str) -> str:
    """Return the heading, in bold if standard output is a terminal and colours are allowed."""
    return click.style(heading, bold=True) if is_coloured() else heading


def is_coloured() -> bool:
    """Return whether standard output is a terminal with colours, and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
