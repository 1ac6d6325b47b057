"""From batches to Arrow columns: decoding, aborted records, and rows.

Imports: ``tidelog.pipeline.plan`` and the layers below. Invariant: if a file was replaced after planning, its offsets
are planned again; lost data raises DataLossError.
"""
