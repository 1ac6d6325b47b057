"""Security: authentication (SASL, TLS, delegation tokens), authorization by ACLs, and the audit log.

Imports: ``tidelog.broker.controller`` and the layers below; no socket of a connection, no handler.
Invariant: a broker with PLAINTEXT listeners alone imports only ``principal`` and ``authorized_operations`` from here.
"""
