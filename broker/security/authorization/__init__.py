"""Authorization: which client may do what, by the ACLs of the metadata.

Imports: ``tidelog.broker.controller``, ``config`` and ``metadata``; of ``tidelog.broker.security`` ``principal`` alone.
Invariant: a broker without ``authorizer.class.name`` imports nothing of this package.
"""
