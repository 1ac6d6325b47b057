"""Replicas of partitions that several brokers have: roles, and the leader's side over a log.

Imports: ``tidelog.broker.cluster``, what ``tidelog.broker.replica`` imports, and the packages below the broker.
Invariant: a lone node imports nothing of it.
"""
