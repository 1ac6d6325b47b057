"""Share groups (KIP-932): records of a partition shared between consumers, acquired and acknowledged one by one.

Imports: ``tidelog.broker.coordinator``, ``find``, ``quota`` and the layers below.
Invariant: acquisitions are in memory only; every other change is written before it takes effect. Loop thread only.
"""
