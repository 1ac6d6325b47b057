"""The pages of groups of all types: a list by name, and one group with members, offsets, and the history of its lag."""

from __future__ import annotations

from tidelog.client.admin.groups import CLASSIC, CONSUMER, SHARE, STREAMS, describe_group, list_groups
from tidelog.console.view import Page, View, list_after, slice_from

TYPES = (CLASSIC, CONSUMER, SHARE, STREAMS)
MAX_ASSIGNED = 20
"""Limit of the partitions or tasks that are shown of a member."""


def list_page(view: View) -> Page:
    """Build the model of the page of the groups that this broker coordinates. Raises ClientError, KafkaError."""
    wanted, kind = view.text("find"), view.text("type")
    found = [one for one in list_groups(view.cluster) if wanted in one.group and kind in ("", one.type)]
    listing = list_after(found, lambda one: one.group, view.parameters.get("after", ""))
    lags = {one.group: view.history.lags(one.group) for one in listing.rows}
    partial = {one.group for one in listing.rows if view.history.is_partial(one.group)}
    values = {"section": "groups", "listing": listing, "lags": lags, "partial": partial, "find": wanted, "type": kind,
              "types": TYPES}  # fmt: skip
    return Page("groups.html", "Groups", values)


def group_page(view: View) -> Page:
    """Build the model of a group's page. Raises ValueError, ClientError; KafkaError, also if there is no such group."""
    name = view.parameters.get("id", "")
    group = describe_group(view.cluster, name, allow_silent_leaders=True)
    rows, following = slice_from(group.partitions, view.number("start") or 0)
    values = {
        "section": "groups", "group": group, "rows": rows, "next": following, "lags": view.history.lags(name),
        "lags_are_partial": view.history.is_partial(name),
        "max_assigned": MAX_ASSIGNED,
    }  # fmt: skip
    return Page("group.html", f"Group {name}", values)
