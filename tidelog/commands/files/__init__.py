"""Commands that work on a broker's files and directories without the broker.

Imports: ``tidelog.log``, ``tidelog.broker`` and ``tidelog.protocol``, when a command runs.
"""
