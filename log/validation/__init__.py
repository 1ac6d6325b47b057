"""Checks of produced batches and message sets, and their conversion to the topic's format.

Imports: ``tidelog.log.records`` and the layers below; not ``producer``.
Invariant: if the budget is that of a turn of the event loop (``tidelog.log.records.work_budget``), records above its
limits raise TooMuchForTurnError before anything is changed.
"""
