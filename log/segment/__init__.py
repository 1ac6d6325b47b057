"""One segment file with its indices, the immutable list of a log's segments, and the walk over batch headers."""
