"""Record batches (magic 2) and message sets (magic 0 and 1), with their codecs and checksums: bytes to values and
back."""
