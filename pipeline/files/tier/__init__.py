"""Remote tiers of Apache Kafka's tiered storage, seen as data directories, and the keys of encrypted segments.

Imports: nothing of the pipeline. Invariant: nothing is written to a tier.
"""
