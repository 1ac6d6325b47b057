"""Transactions as a read plan sees them: those still open, and those aborted, by their markers or ``.txnindex``.

Imports: ``rows`` and ``holes`` of ``tidelog.pipeline.plan``, and the layers below. Invariant: the markers in the log
decide; the ``.txnindex`` is read where damage may hide a marker, and for a transaction without one.
"""
