"""Imports what a broker imports late, in a thread: tests that move the loop by hand need it there."""

from __future__ import annotations

from importlib import import_module

from tidelog.broker.handlers.produce import TRANSACTIONS
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.services import COORDINATORS, VIRTUAL_TOPICS

for name in (TRANSACTIONS, COORDINATORS, VIRTUAL_TOPICS, *(entry.module for entry in REGISTRY.values())):
    import_module(name)
