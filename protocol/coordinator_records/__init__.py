"""Schemas of records in ``__consumer_offsets``, ``__transaction_state`` and ``__share_group_state``.

Imports: ``tidelog.protocol.schema`` and the layers below; not ``messages``.
``api_key`` of a key or value is Kafka's record type, the int16 that each key begins with.
Invariant: names, types and versions are Kafka's, so that Kafka and Tidelog open each other's directories.
"""
