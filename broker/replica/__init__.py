"""Partitions as this broker holds them: appends, reads, waiting requests, fetch sessions and group flush."""
