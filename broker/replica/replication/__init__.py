"""Replication of partitions with several replicas: leader and follower roles, the ISR, throttles.

Imports: ``tidelog.broker.cluster``, what ``tidelog.broker.replica`` imports, and the packages below the broker.
Invariant: a lone node (a broker without a cluster) imports nothing of this package.
"""
