"""Handlers of requests: one module for each API key, and modules with what several share. A *lone node* is a broker
that is not a member of a cluster.

Imports: ``tidelog.broker.network`` and the layers below; not ``admin`` or ``adoption``. Invariant: a handler's key and
versions are those of its entry in ``tidelog.broker.requests.registry``.
"""
