"""The decoding of batches to Arrow columns, without the records of aborted transactions.

Imports: ``tidelog.pipeline.plan`` and the layers below. Invariant: if a file was replaced after planning, its offsets
are planned again; lost data raises DataLossError, or is logged and reported where it is no error.
"""
