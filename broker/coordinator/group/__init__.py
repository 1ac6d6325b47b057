"""Groups of all protocols: their shard, committed offsets, administration, assignors and changes of protocol.

Imports: ``tidelog.broker.coordinator.share_state`` and ``runtime``; never ``transaction``.
Invariant: methods of the shard return a CoordinatorResult; the group changes when its records are replayed.
"""
