"""Security: authentication (SASL, TLS, delegation tokens), authorization by ACLs, and the audit log.

Imports: ``tidelog.broker.controller`` and the layers below; neither sockets of connections nor handlers.
Invariant: a broker that is not in a cluster and has only PLAINTEXT listeners imports nothing of ``tls`` and ``sasl``; a
broker without ``authorizer.class.name`` imports nothing of ``authorization``.
"""
