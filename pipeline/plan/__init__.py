"""What a query reads: topics, segments, offsets, times and keys, what is missing or aborted, and the rows of a plan."""
