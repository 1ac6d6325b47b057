"""The sparse indices of one segment: offset, time and aborted transactions.

Imports: ``tidelog.log.files`` and ``system``, and ``tidelog.protocol``.
Invariant: entries are appended in order by ``pwrite``, never through the mapping: a full disk is an error, not SIGBUS.
"""
