"""Commands that work on a stopped broker's directories.

Imports: ``tidelog.log``, ``tidelog.broker`` and ``tidelog.protocol``, when a command runs.
"""
