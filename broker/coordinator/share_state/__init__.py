"""Durable state of share partitions: the coordinator over ``__share_group_state``.

Imports: ``tidelog.broker.coordinator.runtime``; not ``group`` or ``transaction``.
Invariant: a share partition's state is its last snapshot and the updates after that. Loop thread only.
"""
