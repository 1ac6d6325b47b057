"""Checks of produced batches and message sets, and their conversion to the topic's format.

Imports: ``tidelog.log.records`` and the layers below; not ``producer``.
Invariant: records above the limits of a turn of the event loop (``tidelog.log.records.work_budget``) raise
TooMuchForTurnError before anything is changed.
"""
