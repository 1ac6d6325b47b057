"""``format("tidelog")`` for writing: staged batches, and one commit that publishes them once.

Imports: ``tidelog.pipeline.decode`` and the layers below; not ``audit``, ``export`` or ``source``.
Invariant: one transaction holds a batch's records and its batch id.
"""
