"""Commands that run a broker, or ask one that runs.

Imports: ``tidelog.broker`` in the process that serves, else ``tidelog.client``.
"""
