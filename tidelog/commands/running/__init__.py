"""Commands that run a broker, or connect to a running one.

Imports: ``tidelog.broker`` in the process of a broker, otherwise ``tidelog.client``.
"""
