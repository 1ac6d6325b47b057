"""Security: authentication (SASL, TLS, delegation tokens), authorization by ACLs, and the audit log.

Imports: ``tidelog.broker.controller`` and the layers below; neither sockets of connections nor handlers.
Invariants: in a broker only listeners other than PLAINTEXT, members of a cluster, delegation tokens, and the modules of
an HTTP interface import ``tls`` or ``sasl``. A broker without ``authorizer.class.name`` imports nothing of
``authorization``.
"""
