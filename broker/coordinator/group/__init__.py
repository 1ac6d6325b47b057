"""Groups of all protocols: their shard, committed offsets, administration, assignors and changes of protocol.

A shard has all groups of one partition of ``__consumer_offsets``.

Imports: ``tidelog.broker.coordinator.share_state`` and ``runtime``; never ``transaction``.
Invariant: methods of the shard return a CoordinatorResult; a group changes when its records are replayed. Classic
groups change before, or in the callback of the append.
"""
