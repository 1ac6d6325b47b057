"""Rules of compatibility: may data of one schema be read with another, by the format's own table.

Imports: ``formats``.
Invariant: pure functions over parsed schemas; they run in a thread.
"""
