"""TLS listeners: stores of keys and certificates, handshakes in a thread, and the transport that encrypts.

Imports: ``tidelog.broker.security`` and what it may import; the standard ``ssl``; ``cryptography`` for PKCS12 alone.
Invariant: one ``SSLSocket`` is in the hands of one thread at a time, and bytes that OpenSSL has begun to send are
offered to it again unchanged.
"""
