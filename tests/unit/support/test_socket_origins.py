"""The warning about an unclosed socket shows the code that created it."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from collections.abc import Callable

import pytest

from tests.support.socket_origins import Origin, describe_origin, note_socket_origins


def _make_and_drop() -> None:
    made = socket.socket()
    circle = [made]
    circle.append(circle)  # type: ignore[arg-type]


def _dropped_in_a_thread() -> None:
    thread = threading.Thread(target=_make_and_drop, name="a client's thread", daemon=True)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("drop", "thread"), [(_make_and_drop, "MainThread"), (_dropped_in_a_thread, "a client's thread")]
)
def test_the_warning_names_test_thread_and_line(drop: Callable[[], None], thread: str) -> None:
    note_socket_origins()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        drop()
        gc.collect()
    message = next(str(warning.message) for warning in found if "unclosed" in str(warning.message))
    line = _make_and_drop.__code__.co_firstlineno + 1
    assert f"thread {thread}, at tests/unit/support/test_socket_origins.py:{line}" in message
    assert "test_the_warning_names_test_thread_and_line" in message


def test_a_socket_of_another_descriptor_keeps_its_own_origin() -> None:
    note_socket_origins()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            assert "made in" in repr(server)
            assert repr(client).count("made in") == 1
        assert "made in" not in repr(client)  # it is closed: it has no descriptor


def test_frames_of_libraries_are_followed_by_the_project_s_nearest() -> None:
    library = tuple((f"/somewhere/site-packages/client/part{number}.py", number) for number in range(20))
    shown = describe_origin(Origin((*library, (__file__, 7), (__file__, 8)), "MainThread", "a test"))
    assert shown.startswith("in a test, thread MainThread, at client/part0.py:0 < client/part1.py:1")
    assert shown.endswith("client/part7.py:7 < tests/unit/support/test_socket_origins.py:7")
