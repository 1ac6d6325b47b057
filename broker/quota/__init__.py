"""Client quotas at work: rates by user and client, and how long a client has to wait.

Imports: ``tidelog.broker.cleaning`` and the layers below; not ``find``.
Invariant: of the quotas that are set the most specific counts, key by key.
"""
