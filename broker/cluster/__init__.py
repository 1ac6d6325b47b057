"""Membership of a KRaft cluster whose controllers are other processes: finding them, following their metadata log.

Imports: ``tidelog.broker.metadata`` and the packages below the broker.
Invariant: everything here is sans-io; addresses, answers and times are passed in, and requests come out.
"""
