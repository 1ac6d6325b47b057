"""Values of records as columns: JSON, Avro and Protobuf, with the schemas of a registry.

Imports: ``errors``, ``job_errors`` and ``options.columns`` of ``tidelog.pipeline``, and ``tidelog.protocol``.
Invariant: a value that cannot be decoded is reported with its row, and never changes another row.
"""
