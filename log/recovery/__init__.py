"""Opening a log after a stop: leftovers of swaps, checked indices, and the scan of what was not synced."""
