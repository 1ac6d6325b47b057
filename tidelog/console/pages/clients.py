"""The pages of clients: all connections to this broker, and those of one client id with the quotas that may apply."""

from __future__ import annotations

from tidelog.broker.metrics.clients import ConnectedClient
from tidelog.client.admin.quotas import Quota, list_quotas
from tidelog.console.view import Page, View, ask_for, slice_from
from tidelog.protocol.api_keys import ApiKey

MAX_CONNECTIONS = 2_000
"""Connections that a page looks at, whatever it searches for: listing more would block the loop. A page says so if the
broker has more."""


def list_page(view: View) -> Page:
    """Build the model of the page of connections whose client id or address contains the parameter ``find``."""
    wanted, listed = view.text("find"), list_connected(view)
    found = [one for one in listed if wanted in (one.client_id or "") or wanted in one.host]
    rows, following = slice_from(found, view.number("start") or 0)
    values = {
        "section": "clients", "rows": rows, "next": following, "find": wanted, "count": len(found),
        "listed": len(listed), "open": count_open(view), "api_name": api_name,
    }  # fmt: skip
    return Page("clients.html", "Clients", values)


def client_page(view: View) -> Page:
    """Build the model of the page of one client id; an empty one is that of connections without a client id."""
    name, listed = view.parameters.get("id", ""), list_connected(view)
    found = [one for one in listed if (one.client_id or "") == name]
    rows, following = slice_from(found, view.number("start") or 0)
    quotas = ask_for(lambda: [quota for quota in list_quotas(view.cluster, {}) if may_apply(quota, name, found)])
    values = {
        "section": "clients", "client_id": name, "rows": rows, "next": following, "count": len(found),
        "listed": len(listed), "open": count_open(view), "quotas": quotas, "api_name": api_name,
    }  # fmt: skip
    return Page("client.html", f"Client {name}", values)


def count_open(view: View) -> int:
    """Return the number of all open connections of the broker."""
    return view.sender.run_in_loop(view.sender.broker.clients.count)


def list_connected(view: View) -> list[ConnectedClient]:
    """List up to MAX_CONNECTIONS connections, sorted by client id, address and the time since the last request."""
    found = view.sender.run_in_loop(lambda: view.sender.broker.clients.list(MAX_CONNECTIONS))
    return sorted(found, key=lambda one: (one.client_id or "", one.host, one.idle_ms))


def may_apply(quota: Quota, client_id: str, connections: list[ConnectedClient]) -> bool:
    """Return whether a quota may apply to this client id, or to a user or an address of its connections, by name or as
    a default. A more specific quota may override it (``tidelog.broker.quota.quotas``)."""
    users = {one.principal.partition(":")[2] for one in connections}
    hosts = {one.host for one in connections}
    own = {"client-id": {client_id}, "user": users, "ip": hosts}
    return all(name is None or name in own.get(kind, set()) for kind, name in quota.entity.items())


def api_name(key: int) -> str:
    """Return Kafka's name of an API; a dash for an unknown key, as a connection has before its first request."""
    try:
        return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
    except ValueError:
        return "–"
