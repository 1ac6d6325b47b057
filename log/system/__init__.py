"""The parts that call the operating system: files, locks, clocks, the disk reserve and thread priorities.

Imports: ``tidelog.protocol`` alone.
Invariant: core modules get file system and clocks passed in, so that tests can pass others.
"""
