"""The decoding of batches to Arrow columns; ``read_committed`` leaves out the records of aborted transactions.

Imports: ``tidelog.pipeline.plan`` and the layers below. Invariant: if a file was replaced between planning and opening,
its offsets are planned again; lost data raises DataLossError, or is logged and reported where it is no error.
"""
