"""Security: who a client is, how that is shown, and what is protected on the way.

Imports: ``tidelog.broker.controller`` and the layers below; no socket of a connection, no handler.
Invariant: a broker of plain listeners imports nothing of this package but ``principal`` and ``authorized_operations``.
"""
