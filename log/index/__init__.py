"""The sparse indices of one segment: offset, time and aborted transactions."""
