"""Adoption: takes over the data directories of a stopped Apache Kafka: lists the source, makes a plan, and copies.

Imports: ``tidelog.broker.network`` and the layers below; not ``handlers`` or ``admin``.
Invariant: the source is only read. A kill at any point leaves a data directory with none of the topics, or with all.
"""
