"""Schemas of records in ``__consumer_offsets``, ``__transaction_state`` and ``__share_group_state``.

Imports: ``tidelog.protocol.schema`` and the layers below; not ``messages``.
Invariant: names, types and versions are Kafka's, so that each opens the other's directory.
"""
