"""Forwarding of a member's admin requests: the queue to the active controller, what is forwarded, and its audit lines.

Imports: ``tidelog.broker.handlers`` and the layers below, and of ``tidelog.broker.member`` the modules
``connections.channel`` and ``peers``.
Invariant: a change that a controller's answer reports has its audit line, even if the client has disconnected.
"""
