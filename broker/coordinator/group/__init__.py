"""Groups of every protocol: the shard, committed offsets, administration, assignors and changes of protocol.

Imports: ``tidelog.broker.coordinator.share_state`` and ``runtime``; never ``transaction``.
Invariant: a method of the shard returns a CoordinatorResult; its records change the group when they are replayed.
"""
