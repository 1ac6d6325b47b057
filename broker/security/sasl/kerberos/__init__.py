"""GSSAPI: Kerberos as a mechanism of SASL, its keytab, and the rules that make users of principals.

Imports: what ``tidelog.broker.security.sasl`` may import; ``gssapi`` in ``keytab`` alone, when a listener needs it.
Invariant: MIT Kerberos verifies tickets, in a thread; nothing here reads a key.
"""
