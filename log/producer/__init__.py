"""Idempotent and transactional producers of one log: their state, its snapshots on disk, and its replay.

Imports: ``tidelog.log.records`` and the layers below; not ``validation``.
Invariant: the state keeps the last five batches of a producer id, a snapshot only the last one.
"""
