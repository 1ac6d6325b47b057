"""GSSAPI: Kerberos as a mechanism of SASL, its keytab, and the rules that turn principals into users' names.

Imports: what ``tidelog.broker.security.sasl`` may import; only ``keytab`` imports ``gssapi``, when a listener needs it.
Invariant: MIT Kerberos verifies tickets, in a thread; nothing here reads a key.
"""
