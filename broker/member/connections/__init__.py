"""Connections of a member that know which node to ask: the active controller, the coordinators on other brokers.

Imports: ``tidelog.broker.cluster``, ``coordinator``, and of ``tidelog.broker.member`` the channel and what is below it.
Invariant: what a frozen or dead node was asked is given up in time. Loop thread only.
"""
