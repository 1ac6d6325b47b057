"""The choice of the admin connection that is closed for a new one, in random orders of connects, requests and
closes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.admin.connections import Activity, Connections

NEW, STUCK, IDLE, BUSY = Activity


class Client:
    def __init__(self, activity: Activity = NEW) -> None:
        self.activity = activity
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False


def filled(activities: Iterable[Activity]) -> tuple[Connections, list[Client]]:
    clients = [Client(activity) for activity in activities]
    connections = Connections(len(clients))
    for client in clients:
        connections.add(client)
    assert all(client.is_open for client in clients)
    return connections, clients


@pytest.mark.parametrize(
    ("activities", "victim"),
    [
        ((BUSY, NEW, NEW), 1),
        ((STUCK, IDLE, NEW), 2),
        ((IDLE, BUSY, STUCK), 2),
        ((BUSY, IDLE, IDLE), 1),
    ],
)
def test_the_oldest_idle_connection_is_closed_for_a_new_one(activities: tuple[Activity, ...], victim: int) -> None:
    connections, clients = filled(activities)
    connections.add(new := Client())
    assert new.is_open
    assert [number for number, client in enumerate(clients) if not client.is_open] == [victim]


def test_the_new_connection_is_closed_if_all_others_are_busy() -> None:
    connections, clients = filled([BUSY, BUSY])
    connections.add(new := Client())
    assert not new.is_open
    assert all(client.is_open for client in clients)
    connections.remove(clients[0])
    connections.add(new := Client())
    assert new.is_open


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from(["come", "go", *Activity]), st.integers(0, 9))))
def test_connections_keep_to_their_limit_and_close_only_the_surplus(
    limit: int, steps: list[tuple[str | Activity, int]]
) -> None:
    connections, open_ones = Connections(limit), list[Client]()
    for step, number in steps:
        if step == "come":
            connections.add(client := Client())
            before, open_ones = len(open_ones), [one for one in (*open_ones, client) if one.is_open]
            assert len(open_ones) == min(before + 1, limit)
        elif open_ones and step == "go":
            connections.remove(open_ones.pop(number % len(open_ones)))
        elif open_ones and isinstance(step, Activity):
            open_ones[number % len(open_ones)].activity = step
        assert len(connections) == len(open_ones)
