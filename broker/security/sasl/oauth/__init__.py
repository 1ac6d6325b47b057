"""OAUTHBEARER: bearer tokens in place of passwords (RFC 7628, KIP-255, KIP-768).

Imports: ``tidelog.broker.security`` and what it may import; PyJWT in ``signed_tokens`` alone, which a thread imports.
Invariant: a token is checked in a thread, never on the loop, and its text is in no log line and no answer.
"""
