"""Membership of a KRaft cluster whose controllers are other processes: finding them, registering, and the ISR.

Imports: ``tidelog.broker.metadata`` and the packages below the broker.
Invariant: everything here is sans-io; addresses, answers and times are passed in, and requests come out.
"""
