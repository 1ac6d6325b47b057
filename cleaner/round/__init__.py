"""One round of compaction over one log: which records are superseded, the copy, and the files it writes. No threads, no
clock."""
