"""TLS listeners: stores of keys and certificates, handshakes in a thread, and the transport that encrypts.

Imports: ``tidelog.broker.security`` and what it may import; the standard ``ssl``; ``cryptography`` only for PKCS12.
Invariant: one thread at a time uses an ``SSLSocket``, and bytes that OpenSSL has begun to send are offered to it again
unchanged.
"""
