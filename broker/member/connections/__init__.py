"""Connections of a member: their channel and its security, and those that know which node to ask.

Those know the active controller, leaders, and the coordinators on other brokers.

Imports: ``tidelog.broker.cluster``, ``coordinator``, and of ``tidelog.broker.member`` the controller and the nodes.
Invariant: what a frozen or dead node was asked is given up in time. Loop thread only.
"""
