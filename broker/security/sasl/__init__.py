"""SASL: mechanisms, and the exchange that authenticates a connection before its first ordinary request.

Imports: ``tidelog.broker.security`` and what it may import; no socket and no loop: bytes go in, bytes and outcomes come
out. Only ``oauth.key_set`` uses the network, in a thread. Invariant: until an exchange is complete, a client reaches
nothing of the broker but ApiVersions. The answer to wrong credentials does not tell whether the user or the password
was wrong.
"""
