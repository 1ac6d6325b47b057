"""GSSAPI: Kerberos as a mechanism of SASL, its keytab, and the rules that turn principals into users' names.

Imports: what ``tidelog.broker.security.sasl`` may import; only ``keytab`` imports ``gssapi``, when a listener needs it.
Invariant: MIT Kerberos reads keys, and verifies tickets in a thread; no Python code sees a key.
"""
