"""Fetch loops of a follower: their sessions, their positions, and the partitions that each of them has.

Imports: ``tidelog.broker.metadata`` and the packages below the broker.
Invariant: everything here is sans-io, as in the package around it.
"""
