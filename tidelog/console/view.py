"""The request for a page (View), its model (Page), and the limits of a page.

A page is a function from a :class:`View` to a :class:`Page`: a template and its values. The function runs in a thread
of the console's pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from tidelog.client.cluster import Cluster
from tidelog.client.connection import ClientError
from tidelog.console.history import History
from tidelog.console.local_client import RequestSender
from tidelog.console.schemas import Decode, as_bytes
from tidelog.protocol.errors import KafkaError

MAX_ROWS = 100
"""Rows of a table on one page; the next page begins after the last one."""
MAX_ROW_CHARACTERS = 6_000
"""Limit of the names' characters on one page. A character may take 16 bytes: four in the text, twelve in a link."""
MAX_NUMBER_DIGITS = 18
CHECKED_PER_TURN = 200
"""Topics whose ACLs are checked in one turn of the loop."""
T = TypeVar("T")


class Page(NamedTuple):
    """Model of a page: its template, its title and the template's values."""

    template: str
    title: str
    values: Mapping[str, Any]


class Listing(NamedTuple, Generic[T]):
    """Rows of one page, and the name after which the next page begins; None on the last page."""

    rows: list[T]
    next: str | None


@dataclass(slots=True, kw_only=True)
class View:
    """The connection to the broker in the caller's name, and the parameters of the URL. For the page's thread only."""

    sender: RequestSender
    cluster: Cluster
    history: History
    path: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    may_describe: Callable[[str], bool] = lambda _topic: True
    """Return whether the caller may describe a topic. Loop thread."""
    decode: Decode = as_bytes
    """Decode a value that names a schema of the registry, None for other bytes."""

    def text(self, name: str) -> str:
        """Return a parameter without surrounding spaces; empty if it is missing."""
        return self.parameters.get(name, "").strip()

    def number(self, name: str) -> int | None:
        """Parse a parameter that is a number, None if it is empty. Raises ValueError."""
        text = self.text(name)
        return parse_number(name, text) if text else None


class Part(NamedTuple, Generic[T]):
    """One part of a page: its value, or the error that is shown instead."""

    value: T | None
    error: str | None


def ask_for(question: Callable[[], T]) -> Part[T]:
    """Build a part of a page from the result of ``question``, or from its error."""
    try:
        return Part(question(), None)
    except (KafkaError, ClientError) as error:
        return Part(None, str(error))


def parse_number(name: str, text: str) -> int:
    """Parse a number from 0 on. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_NUMBER_DIGITS):
        raise ValueError(f"{name} is {text[:20]!r}: expected a number")
    return int(text)


def describable_names(view: View, names: Iterator[str]) -> Iterator[str]:
    """Yield the topics among ``names`` that the caller may describe, CHECKED_PER_TURN in each turn of the loop."""
    while some := list(islice(names, CHECKED_PER_TURN)):
        yield from view.sender.run_in_loop(lambda some=some: [name for name in some if view.may_describe(name)])  # type: ignore[misc]


def list_after(rows: Iterable[T], name_of: Callable[[T], str], after: str) -> Listing[T]:
    """Return the rows after a name that fit on a page; ``rows`` are sorted by name."""
    shown: list[T] = []
    characters = 0
    for row in rows:
        name = name_of(row)
        if name <= after and after:
            continue
        characters += len(name)
        if shown and (len(shown) == MAX_ROWS or characters > MAX_ROW_CHARACTERS):
            return Listing(shown, name_of(shown[-1]))
        shown.append(row)
    return Listing(shown, None)


def slice_from(rows: Iterable[T], start: int) -> tuple[list[T], int | None]:
    """Return the rows from number ``start`` on that fit on a page, and the number of the next page's first row."""
    found = list(islice(rows, start, start + MAX_ROWS + 1))
    return found[:MAX_ROWS], start + MAX_ROWS if len(found) > MAX_ROWS else None
