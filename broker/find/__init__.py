"""Searches by key, tag and time for clients: indexing of topics, the search itself, and virtual topics.

Imports: ``tidelog.broker.cleaning`` and the layers below; not ``quota``.
Invariant: an acknowledgement never waits for an index, and filtering never runs on the loop.
"""
