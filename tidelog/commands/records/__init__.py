"""Commands that write, read and find records.

Imports: ``tidelog.client`` and ``tidelog.find``.
"""
