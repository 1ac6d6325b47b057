"""Share groups (KIP-932): records of a partition shared between consumers, acquired and acknowledged one by one.

Imports: ``tidelog.broker.coordinator``, ``find``, ``quota`` and the layers below.
Invariant: acquisitions and renewals are in memory only. An acknowledgement is passed to the share coordinator, which
keeps it in ``__share_group_state``; then the state in memory changes. The client is answered when the acknowledgement
is committed. Loop thread only.
"""
