"""Handlers of requests, one module for each API key.

Imports: ``tidelog.broker.network`` and the layers below; not ``admin`` or ``adoption``. Invariant: a module's key and
versions are those of its entry in ``tidelog.broker.requests.registry``.
"""
