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
def test_a_new_connection_closes_the_oldest_of_those_with_the_lowest_activity(
    activities: tuple[Activity, ...], victim: int
) -> None:
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


@given(
    st.lists(st.sampled_from(Activity), min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from(["come", "come", "go", *Activity]), st.integers(0, 9))),
)
def test_connections_keep_to_their_limit_and_close_the_least_active(
    activities: list[Activity], steps: list[tuple[str | Activity, int]]
) -> None:
    connections, open_ones = filled(activities)
    for step, number in [("come", 0), *steps]:
        if step == "come":
            candidates = sorted(open_ones, key=lambda one: one.activity)  # stable: the oldest of equal ones is first
            connections.add(client := Client())
            victim = None
            if len(open_ones) == len(activities):
                victim = client if candidates[0].activity is BUSY else candidates[0]
            assert [one for one in (*open_ones, client) if not one.is_open] == ([] if victim is None else [victim])
            open_ones = [one for one in (*open_ones, client) if one is not victim]
        elif open_ones and step == "go":
            connections.remove(open_ones.pop(number % len(open_ones)))
        elif open_ones and isinstance(step, Activity):
            open_ones[number % len(open_ones)].activity = step
        assert len(connections) == len(open_ones)
