"""Share groups (KIP-932): records of a partition shared between consumers, acquired and acknowledged one by one.

Imports: ``tidelog.broker.coordinator``, ``find``, ``quota`` and the layers below.
Invariant: acquisition is soft; every other step is durable before it is taken over. Loop thread only.
"""
