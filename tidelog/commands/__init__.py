"""Modules of the tidelog command line: one for each subcommand, in packages by what they work on.

Imports: all of ``tidelog``, each package when its command runs: ``tidelog version`` loads neither broker nor pipeline.
Invariant: a command returns its exit code; None means 0.
"""
