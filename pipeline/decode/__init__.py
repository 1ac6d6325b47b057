"""From batches to Arrow columns: decoding, aborted records, and rows.

Imports: ``tidelog.pipeline.plan`` and the layers below.
Invariant: a file that is not the planned one any more is planned again by its offsets; lost data raises DataLossError.
"""
