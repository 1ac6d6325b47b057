"""Pages of records, from a log that is read one batch at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.support.model_brokers import PLACES, Log, ModelCluster
from tidelog.client.admin.offsets import READ_COMMITTED
from tidelog.console.history import History
from tidelog.console.pages.records import ROUNDS, FoundRecords, read_records
from tidelog.console.view import View


def page(log: Log, offset: str) -> FoundRecords:
    """Read the page of committed records that begins at an offset."""
    parameters = {"offset": offset}
    view = View(
        sender=cast(Any, SimpleNamespace()),
        cluster=cast(Any, ModelCluster(log)),
        history=History(),
        parameters=parameters,
    )
    return read_records(view, PLACES[0][0], "auto", READ_COMMITTED)


def walk(log: Log) -> tuple[list[int], int]:
    """Return the offsets of the records on a page and on those after it, and how many pages there are."""
    found = page(log, "0")
    offsets, pages = [row.offset for row in found.rows], 1
    while found.newer is not None:
        found = page(log, found.newer)
        offsets += [row.offset for row in found.rows]
        pages += 1
    return offsets, pages


def test_a_page_of_aborted_records_alone_leads_on() -> None:
    log = Log()
    log.add_aborted(7, 3 * ROUNDS)
    log.append(b"kept")
    assert walk(log) == ([3 * ROUNDS + 1], 4)


def test_offsets_without_records_are_the_last_page() -> None:
    log = Log()
    log.append(b"kept")
    log.skip(5)
    assert walk(log)[0] == [0]


def test_a_page_is_followed_by_the_next_of_its_records() -> None:
    log = Log()
    log.append(*(b"%d" % number for number in range(60)))
    log.append(*(b"%d" % number for number in range(60)))
    offsets, pages = walk(log)
    assert (offsets, pages) == (list(range(120)), 3)
