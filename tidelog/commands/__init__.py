"""Modules of the tidelog command line: one for each command, most of them in packages by what they work on.

Imports: all of ``tidelog``, each package when its command runs: ``tidelog version`` loads nothing of the pipeline, and
of the broker only the parsers of a client's profile.
Invariant: a command returns its exit code; None means 0.
"""
