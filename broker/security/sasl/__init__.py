"""SASL: mechanisms, and the exchange that authenticates a connection before its first ordinary request.

Imports: ``tidelog.broker.security`` and what it may import; no socket, no loop: bytes in, bytes and outcomes out.
Invariant: until an exchange is complete nothing of the broker is reached but the table of ApiVersions; of a failed one
a client learns no more than that it failed.
"""
