"""The pages of connected clients: all of them, and one with its connections and quotas."""

from __future__ import annotations

from tidelog.broker.metrics.clients import ConnectedClient
from tidelog.client.admin.quotas import Quota, list_quotas
from tidelog.console.view import MAX_ROWS, Page, View, ask_for, slice_from
from tidelog.protocol.api_keys import ApiKey

MAX_CONNECTIONS = 2_000
"""Limit of the connections that are listed, as more would block the loop."""


def list_page(view: View) -> Page:
    """Build the model of the page of all connections."""
    wanted, listed = view.text("find"), list_connected(view)
    found = [one for one in listed if wanted in (one.client_id or "") or wanted in one.host]
    rows, following = slice_from(found, view.number("start") or 0)
    values = {
        "section": "clients", "rows": rows, "next": following, "find": wanted, "count": len(found),
        "listed": len(listed), "open": view.sender.run_in_loop(view.sender.broker.clients.count), "api_name": api_name,
    }  # fmt: skip
    return Page("clients.html", "Clients", values)


def client_page(view: View) -> Page:
    """Build the model of one client's page, by its client id."""
    name = view.parameters.get("id", "")
    found = [one for one in list_connected(view) if (one.client_id or "") == name]
    quotas = ask_for(lambda: [quota for quota in list_quotas(view.cluster, {}) if applies(quota, name, found)])
    values = {
        "section": "clients", "client_id": name, "rows": found[:MAX_ROWS], "count": len(found), "quotas": quotas,
        "api_name": api_name,
    }  # fmt: skip
    return Page("client.html", f"Client {name}", values)


def list_connected(view: View) -> list[ConnectedClient]:
    """List up to MAX_CONNECTIONS connections, sorted by client id and address."""
    found = view.sender.run_in_loop(lambda: view.sender.broker.clients.list(MAX_CONNECTIONS))
    return sorted(found, key=lambda one: (one.client_id or "", one.host, one.idle_ms))


def applies(quota: Quota, client_id: str, connections: list[ConnectedClient]) -> bool:
    """Return whether a quota may apply to this client, by id, user or address, or as the default of one of them. A
    more specific quota overrides it (``tidelog.broker.quota.quotas``)."""
    users = {one.principal.partition(":")[2] for one in connections}
    hosts = {one.host for one in connections}
    own = {"client-id": {client_id}, "user": users, "ip": hosts}
    return all(name is None or name in own.get(kind, set()) for kind, name in quota.entity.items())


def api_name(key: int) -> str:
    """Return Kafka's name of an API; a dash for a connection without requests so far."""
    try:
        return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
    except ValueError:
        return "–"
