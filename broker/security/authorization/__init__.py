"""Authorization: which client may do what, by the ACLs of the metadata.

Imports: ``tidelog.broker.controller``, ``config`` and ``metadata``; of the parent room ``principal`` alone.
Invariant: a broker without ``authorizer.class.name`` imports nothing of this room.
"""
