"""A module that imports, when it is imported, the modules that a broker imports later, in a thread.

Tests that run the event loop step by step need these modules earlier, because such tests do not wait for the thread.
"""

from __future__ import annotations

from importlib import import_module

from tidelog.broker.handlers.produce import TRANSACTIONS
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.services import COORDINATORS, VIRTUAL_TOPICS

for name in (TRANSACTIONS, COORDINATORS, VIRTUAL_TOPICS, *(entry.module for entry in REGISTRY.values())):
    import_module(name)
