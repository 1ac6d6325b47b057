from __future__ import annotations

import pytest

from tests.support.traced import traced
from tidelog.broker.share.sessions import FINAL_EPOCH, MAX_PARTITIONS, SessionKey, ShareSession, ShareSessions
from tidelog.protocol.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

KEY, OTHER = SessionKey("g", "m"), SessionKey("g", "n")
T = b"t" * 16


def test_a_session_remembers_its_partitions() -> None:
    session = ShareSession([(T, 0)], object())
    session.update([(T, 0), (T, 1)], [(T, 7)])
    session.update([], [(T, 0)])
    assert (list(session.partitions), session.epoch) == ([(T, 1)], 3)


def test_a_session_grows_by_no_made_up_partitions_beyond_a_bound() -> None:
    """Each request of its member walks over all of them."""
    session = ShareSession([(T, index) for index in range(MAX_PARTITIONS - 1)], object())
    with pytest.raises(InvalidRequestError):
        session.update([(T, MAX_PARTITIONS), (T, MAX_PARTITIONS + 1)], [])
    assert (len(session.partitions), session.epoch) == (MAX_PARTITIONS - 1, 1)
    session.update([(T, 0), (T, MAX_PARTITIONS), (T, MAX_PARTITIONS + 1)], [(T, 1)])
    assert (len(session.partitions), session.epoch) == (MAX_PARTITIONS, 2)


def test_the_largest_epoch_is_followed_by_one() -> None:
    session = ShareSession([], object())
    session.epoch = 2**31 - 1
    session.advance()
    assert session.epoch == 1


def test_requests_carry_the_epoch_that_is_expected() -> None:
    sessions = ShareSessions(5)
    with pytest.raises(ShareSessionNotFoundError):
        sessions.find(KEY, 1)
    session = sessions.open(KEY, [], object())
    assert sessions.find(KEY, 1) is sessions.find(KEY, FINAL_EPOCH) is session
    with pytest.raises(InvalidShareSessionEpochError):
        sessions.find(KEY, 2)


def test_there_is_one_session_for_a_member_and_so_many_in_all() -> None:
    sessions = ShareSessions(1)
    connection = object()
    sessions.open(KEY, [], connection)
    sessions.open(KEY, [], connection)
    assert len(sessions) == 1
    with pytest.raises(ShareSessionLimitReachedError):
        sessions.open(OTHER, [], connection)
    assert sessions.of_connection(connection) == [KEY]
    assert sessions.of_connection(object()) == []
    assert sessions.close(KEY) is not None
    assert sessions.close(KEY) is None


def test_a_connection_that_closes_costs_its_own_sessions_alone() -> None:
    sessions = ShareSessions(10_000)
    connections = [object() for _ in range(100)]
    for number in range(2_000):
        sessions.open(SessionKey("g", str(number)), [], connections[number % 100])
    steps = 0

    def note(*_: object) -> None:
        nonlocal steps
        steps += 1

    first = connections[0]
    with traced(lambda *_: note):
        ended = sessions.of_connection(first)
    assert len(ended) == 20
    assert steps < 20, "lines run, or elements of a comprehension"
    for key in ended:
        sessions.close(key)
    assert sessions.of_connection(first) == []
    assert len(sessions) == 1_980
