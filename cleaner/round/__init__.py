"""One round of compaction over one log: superseded records, the copy, and the files it writes.

Imports: ``tidelog.cleaner.engine`` and the layer below.
Invariant: no clock, and no thread but the one that reads ahead; offsets never change.
"""
