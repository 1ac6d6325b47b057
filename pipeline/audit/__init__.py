"""Auditing logs: checks of one segment and its indices, producers, and buckets of counts and hashes."""
