"""Remote tiers of Apache Kafka's tiered storage, seen as data directories, and the keys of encrypted segments.

Imports: ``tidelog.pipeline.files.remote``. Invariant: nothing is written to a tier.
"""
