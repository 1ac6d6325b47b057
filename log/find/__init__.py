"""Finding records: hashes, rows, engines, look-ups and filters over the index files of a log."""
