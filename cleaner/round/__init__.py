"""One round of compaction over one log: it finds superseded records, and writes new segments without them.

Imports: ``tidelog.cleaner.engine``, ``log_to_clean`` and ``errors``, ``tidelog.log`` and ``tidelog.protocol``.
Invariant: it reads no clock and starts no thread but the one that reads ahead; offsets never change.
"""
