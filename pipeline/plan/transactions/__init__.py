"""Transactions as a read plan sees them: those still open, and those aborted, by their markers or by the index.

Imports: of ``tidelog.pipeline.plan`` the rows and the holes, and the layers below.
Invariant: the markers in the log decide; the index is asked where damage may hide one.
"""
