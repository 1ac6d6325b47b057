"""Security: authentication (SASL, TLS, delegation tokens), authorization by ACLs, and the audit log.

Imports: ``tidelog.broker.controller`` and the layers below; neither sockets of connections nor handlers.
Invariant: a broker that has only PLAINTEXT listeners imports only ``principal`` and ``authorized_operations`` from
here.
"""
