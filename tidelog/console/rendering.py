"""HTML of the console's pages: Jinja2 templates, which escape every value, and formats of numbers, times and links.

No value becomes markup: no template marks a value as safe, and ``link`` quotes all parts of a URL. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tidelog.console.values import clip
from tidelog.console.view import MAX_ROWS, Page

TEMPLATES = Path(__file__).with_name("templates")
STATIC = Path(__file__).with_name("static")
NAME_LIMIT = 160
"""Limit of a text that ``format_name`` shows, in bytes of HTML, without the ellipsis."""
CHART_WIDTH, CHART_HEIGHT = 600, 120
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNIT = 1024


def render(page: Page) -> str:
    """Render the HTML of a page."""
    return environment().get_template(page.template).render(title=page.title, **page.values)


@cache
def environment() -> Environment:
    """Build the environment of the templates, which are compiled at first use."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "link": link, "points": chart_points, "width": CHART_WIDTH, "height": CHART_HEIGHT, "max_rows": MAX_ROWS,
    }  # fmt: skip
    made.filters |= {
        "size": format_size, "number": format_number, "moment": format_moment, "name": format_name,
        "duration": format_duration,
    }  # fmt: skip
    return made


def link(*path: str | int, **parameters: str | int | None) -> str:
    """Build the URL of a page: the parts of its path, and the parameters that are not None."""
    url = "/".join(["/console", *(quote(str(part), safe="") for part in path)])
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{url}?{urlencode(given)}" if given else url


def format_size(count: float | None) -> str:
    """Format a number of bytes with a unit from B to PiB; a dash if the number is unknown (None or negative)."""
    if count is None or count < 0:
        return "–"
    for unit in _UNITS:
        if count < _UNIT or unit == _UNITS[-1]:
            break
        count /= _UNIT
    return f"{count:.0f} {unit}" if unit == _UNITS[0] or count >= 100 else f"{count:.1f} {unit}"


def format_number(value: float | None) -> str:
    """Format a number with thousands separators; None as a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def format_moment(time_ms: int | None) -> str:
    """Format a timestamp in ms as UTC; a dash if there is none (None or negative)."""
    if time_ms is None or time_ms < 0:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def format_duration(milliseconds: float | None) -> str:
    """Format a time span in the largest of h, min and s that gives at least 2, otherwise in ms; None as a dash."""
    if milliseconds is None:
        return "–"
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= 2 * size:
            return f"{milliseconds / size:.1f} {unit}"
    return (
        f"{milliseconds:.1f} ms"
        if milliseconds < 100 and milliseconds != int(milliseconds)
        else f"{milliseconds:.0f} ms"
    )


def format_name(text: str | None) -> str:
    """Cut a name, or another text of any length, at NAME_LIMIT, with an ellipsis; None is a dash."""
    if text is None:
        return "–"
    cut = clip(text, NAME_LIMIT)
    return text if cut == text else f"{cut}…"


def chart_points(values: Sequence[float]) -> str:
    """Compute the points of a chart's SVG polyline; the top is the largest value, or 1 if all values are smaller.

    The text is empty for fewer than two values.
    """
    if len(values) < 2:
        return ""
    top = max(max(values), 1)
    step = CHART_WIDTH / (len(values) - 1)
    return " ".join(
        f"{index * step:.0f},{CHART_HEIGHT - value / top * (CHART_HEIGHT - 4) - 2:.0f}"
        for index, value in enumerate(values)
    )
