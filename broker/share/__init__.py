"""Share groups (KIP-932): records of a partition shared between consumers, acquired and acknowledged one by one.

Imports: ``tidelog.broker.coordinator``, ``find``, ``quota`` and the layers below.
Invariant: acquisitions are in memory only; every other change by a member is written to ``__share_group_state`` before
it takes effect. Loop thread only.
"""
