"""The seams to the operating system: files, clocks, reserve and thread priorities.

Imports: ``tidelog.protocol`` alone.
Invariant: core modules get file system and clocks passed in, so that tests can pass others.
"""
