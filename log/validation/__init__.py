"""Checks of produced batches and message sets, and their conversion to the topic's format.

Imports: ``tidelog.log.records`` and the layers below; not ``producer``.
Invariant: records that take longer than a turn of the loop raise TooMuchForTurnError before anything is changed.
"""
