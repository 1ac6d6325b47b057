"""The page of the broker's configuration: each key with its value, source and documentation."""

from __future__ import annotations

from tidelog.client.admin.configs import Resource, describe_configs
from tidelog.console.view import Page, View, slice_from


def configuration_page(view: View) -> Page:
    """Build the model of the page. Raises ValueError, ClientError, KafkaError."""
    wanted, only_set = view.text("find"), view.text("set") == "1"
    resource = Resource("broker", str(view.sender.broker.node_id))
    found = [
        entry
        for entry in describe_configs(view.cluster, resource, documentation=True)
        if wanted in entry.key and not (only_set and entry.source == "default")
    ]
    rows, following = slice_from(found, view.number("start") or 0)
    values = {
        "section": "configuration", "rows": rows, "next": following, "find": wanted, "only_set": only_set,
        "count": len(found), "resource": resource,
    }  # fmt: skip
    return Page("configuration.html", "Configuration", values)
