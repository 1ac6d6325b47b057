"""The frame of the command line: groups that import a command when it is called, shared options, errors and output.

Imports: ``tidelog.client``, ``tidelog.protocol``; ``options`` also the parser of times in ``tidelog.log.find``,
``scram`` the broker's SCRAM credentials and metadata records, ``output`` the broker's escapes of control characters.
Invariant: a failure is one line on standard error, which begins with the command; standard output has only results.
"""
