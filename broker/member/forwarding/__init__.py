"""Forwarding of a member's admin requests: the queue to the active controller, what is forwarded, and its audit lines.

Imports: ``tidelog.broker.handlers``, ``requests``, ``cluster``, and of ``tidelog.broker.member`` the
channel and its peers.
Invariant: what a controller has changed has its audit line, also if the client that asked for it has gone.
"""
