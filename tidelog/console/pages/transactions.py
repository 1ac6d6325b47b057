"""The pages of transactions: a list of transactional ids, and one with its producer and partitions."""

from __future__ import annotations

from tidelog.client.admin.transactions import describe_transaction, list_transactions
from tidelog.console.view import Page, View, list_after, slice_from


def list_page(view: View) -> Page:
    """Build the model of the page of the transactional ids that this broker coordinates. Raises ClientError,
    KafkaError."""
    wanted = view.text("find")
    found = [one for one in list_transactions(view.cluster) if wanted in one.transactional_id]
    listing = list_after(found, lambda one: one.transactional_id, view.parameters.get("after", ""))
    return Page("transactions.html", "Transactions", {"section": "transactions", "listing": listing, "find": wanted})


def transaction_page(view: View) -> Page:
    """Build the model of a transactional id's page. Raises ClientError, KafkaError if it is unknown."""
    found = describe_transaction(view.cluster, view.parameters.get("id", ""))
    partitions, following = slice_from(found.partitions, 0)
    values = {
        "section": "transactions", "transaction": found, "partitions": partitions, "is_cut": following is not None,
        "now_ms": view.sender.broker.time.milliseconds(),
    }  # fmt: skip
    return Page("transaction.html", f"Transaction {found.transactional_id}", values)
