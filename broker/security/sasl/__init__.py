"""SASL: mechanisms, and the exchange that authenticates a connection before its first ordinary request.

Imports: ``tidelog.broker.security`` and what it may import; no socket and no loop: bytes go in, bytes and outcomes come
out. Invariant: until an exchange is complete, a client reaches nothing of the broker but ApiVersions. The answer to a
failed one does not tell which part was wrong.
"""
