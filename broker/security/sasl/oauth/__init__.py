"""OAUTHBEARER: bearer tokens in place of passwords (RFC 7628, KIP-255, KIP-768).

Imports: ``tidelog.broker.security`` and what it may import; only ``signed_tokens`` imports PyJWT, and a thread imports
it. Invariant: a token is checked in a thread, never on the loop, and its text is in no log line and no answer.
"""
