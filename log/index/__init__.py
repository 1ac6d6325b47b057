"""The indices of one segment: sparse ones of offsets and timestamps, and a complete one of aborted transactions.

Imports: ``tidelog.log.files`` and ``system``, and ``tidelog.protocol``.
Invariant: entries are appended in order by ``pwrite``, never through a mapping: a full disk is an error, not SIGBUS.
"""
