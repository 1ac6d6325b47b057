"""Taking over the data directories of a stopped Apache Kafka: the source, the plan, and the copy.

Imports: ``tidelog.broker.network`` and the layers below; not ``handlers`` or ``admin``.
Invariant: the source is only read, and a kill at any point leaves a data directory that shows nothing new, or
everything.
"""
