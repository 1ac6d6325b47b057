"""Protocol of a broker in a KRaft cluster whose controllers are other processes: metadata, registration, fetches, ISRs.

Imports: ``tidelog.broker.metadata`` and the packages below the broker.
Invariant: everything here is sans-io; addresses, answers and times are passed in, and requests come out.
"""
