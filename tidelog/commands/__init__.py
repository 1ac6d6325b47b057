"""One module per sub-command of the tidelog command line.

Imports: all of ``tidelog``, each package when its command runs: ``tidelog version`` loads neither broker nor pipeline.
Invariant: a command returns its exit code.
"""
