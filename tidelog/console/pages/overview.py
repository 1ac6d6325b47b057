"""The first page: the broker, its cluster, rates, request times, failed or full log directories, and refused logs."""

from __future__ import annotations

import os
from importlib import metadata

from tidelog.broker.admin.app import failures_of
from tidelog.client.admin.nodes import describe_cluster, describe_log_dirs
from tidelog.console.history import take_latencies, take_totals
from tidelog.console.view import MAX_ROWS, Page, View, ask_for


def overview(view: View) -> Page:
    """Build the model of the first page."""
    broker = view.sender.broker
    rates = view.history.rates()
    failures = failures_of(broker.log_manager)
    return Page(
        "overview.html",
        "Overview",
        {
            "section": "overview",
            "cluster": ask_for(lambda: describe_cluster(view.cluster)),
            "directories": ask_for(lambda: describe_log_dirs(view.cluster, [])),
            "node": broker.node_id,
            "version": metadata.version("tidelog"),
            "process": os.getpid(),
            "topics": view.sender.run_in_loop(lambda: len(broker.metadata.topics)),
            "connections": view.sender.run_in_loop(broker.clients.count),
            "totals": view.sender.run_in_loop(lambda: take_totals(broker)),
            "latencies": view.sender.run_in_loop(lambda: take_latencies(broker))[:MAX_ROWS],
            "rates": rates,
            "failures": failures[:MAX_ROWS],
            "failure_count": len(failures),
        },
    )
