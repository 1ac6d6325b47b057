"""Schemas of the records of ``__cluster_metadata``.

Imports: ``tidelog.protocol.schema``, ``record`` and the layers below; not ``messages``.
Invariant: names, types and versions are Kafka's, except the tagged fields of NoOpRecord.
"""
