"""One round of compaction over one log: superseded records, the copy, and the files it writes.

Imports: ``tidelog.cleaner.engine`` and the layer below.
Invariant: no threads and no clock; offsets never change.
"""
