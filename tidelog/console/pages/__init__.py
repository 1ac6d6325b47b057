"""Table of the console's pages: path -> the function that builds the page's model, and its parameters.

Imports: tidelog.client, tidelog.console, tidelog.protocol, and modules of tidelog.broker, tidelog.cleaner and
tidelog.log for data without a Kafka API.
Invariant: a page shows a bounded number of rows, and reads a bounded number of bytes from logs. Exception: a search by
key or tag reads until it has its rows. A page may list all groups, ACLs or transactional ids of the broker to find its
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog.console.pages import (
    access,
    clients,
    compaction,
    configuration,
    groups,
    overview,
    records,
    topics,
    transactions,
)
from tidelog.console.view import Page, View


class Entry(NamedTuple):
    """A page's function, and its parameters."""

    build: Callable[[View], Page]
    parameters: tuple[str, ...] = ()


TABLE = {
    "/console": Entry(overview.overview),
    "/console/topics": Entry(topics.list_page, ("after", "find", "internal")),
    "/console/topics/{topic}": Entry(topics.topic_page, ("start",)),
    "/console/topics/{topic}/records": Entry(records.browse, records.PARAMETERS),
    "/console/topics/{topic}/records/{partition}/{offset}": Entry(records.one_record, ("format",)),
    "/console/groups": Entry(groups.list_page, ("after", "find", "type")),
    "/console/group": Entry(groups.group_page, ("id", "start")),
    "/console/transactions": Entry(transactions.list_page, ("after", "find")),
    "/console/transaction": Entry(transactions.transaction_page, ("id",)),
    "/console/compaction": Entry(compaction.compaction_page, ("start", "find")),
    "/console/configuration": Entry(configuration.configuration_page, ("find", "set", "start")),
    "/console/access": Entry(access.access_page, ("start",)),
    "/console/clients": Entry(clients.list_page, ("find", "start")),
    "/console/client": Entry(clients.client_page, ("id", "start")),
}
"""Path of a route -> its page."""
