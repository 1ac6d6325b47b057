"""Ports for processes that start later."""

from __future__ import annotations

import random
import socket

from benchmarks.rivals.process import free_port

FIRST_OF_OUTGOING = 32_768


def test_no_outgoing_connection_is_given_a_free_port() -> None:
    assert all(1024 < free_port() < FIRST_OF_OUTGOING for _ in range(50))


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        taken = server.getsockname()[1]
        assert taken not in {free_port() for _ in range(50)}


def test_two_processes_whose_random_is_seeded_alike_choose_different_ports() -> None:
    chosen = []
    for _ in range(2):
        random.seed(1)
        chosen.append([free_port() for _ in range(5)])
    assert chosen[0] != chosen[1]
