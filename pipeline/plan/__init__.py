"""Planning of reads: topics, segments, offsets, times and keys, missing or aborted records, and the rows of a plan."""
