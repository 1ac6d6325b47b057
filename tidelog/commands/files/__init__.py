"""Commands that work on a stopped broker's directories.

Imports: ``tidelog.log`` and ``tidelog.broker``, when a command runs.
"""
