"""Groups of all protocols: their shard, committed offsets, administration, assignors and changes of protocol.

A shard has all groups of one partition of ``__consumer_offsets``.

Imports: ``tidelog.broker.coordinator.share_state`` and ``runtime``; never ``transaction``.
Invariant: the shard's methods append nothing themselves. They return the records (``runtime.result``), and a group
changes when these are replayed. Classic groups change before the append, or in its callback.
"""
