"""Authorization: which client may do what, by the ACLs of the metadata.

Imports: ``tidelog.broker.config``, ``metadata`` and ``loop``, and the layers below them; of ``tidelog.broker.security``
only ``principal``, ``authorized_operations`` and ``log_lines``.
Invariant: a broker without ``authorizer.class.name`` imports nothing of this package.
"""
