"""Idempotent and transactional producers of one log: the state, its snapshots on disk, and its replay.

Imports: ``tidelog.log.records`` and the layers below; not ``validation``.
Invariant: the state keeps the last five batches of a producer id, a snapshot the last one.
"""
