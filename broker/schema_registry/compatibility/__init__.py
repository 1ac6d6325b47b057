"""Rules of compatibility of each format: whether data of one schema can be read with another.

Imports: ``formats``.
Invariant: pure functions over parsed schemas; they run in a thread.
"""
