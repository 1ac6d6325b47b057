"""Commands that write, read and find records.

Imports: ``tidelog.client`` and ``tidelog.find``; with ``--value-format`` the values of ``tidelog.pipeline``.
"""
