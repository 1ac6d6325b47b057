"""The share coordinator, which keeps the states of share partitions in ``__share_group_state``.

A share partition is a partition of a topic, as one share group reads it.

Imports: ``tidelog.broker.coordinator.runtime``; not ``group`` or ``transaction``.
Invariant: a share partition's state is its last snapshot and the updates after that. Loop thread only.
"""
