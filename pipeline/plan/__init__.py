"""Planning of reads: topics, segments, offsets, times and keys, missing or aborted records, and the rows of a plan.

Imports: ``tidelog.pipeline.options`` and the layers below.
Invariant: a slice names bytes and offsets; if the file has changed since, only the offsets are valid.
"""
