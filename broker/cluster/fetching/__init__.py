"""Fetch loops of a follower: their sessions and positions, and the partitions that each loop fetches.

Imports: ``tidelog.broker.metadata`` and the packages below the broker.
Invariant: everything here is sans-io, as in all of ``tidelog.broker.cluster``.
"""
