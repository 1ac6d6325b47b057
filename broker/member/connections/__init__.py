"""Connections of a member to other nodes: one channel with its security, and classes that find the node to ask.

The nodes are the active controller, leaders of partitions, and the coordinators on other brokers.

Imports: ``tidelog.broker.coordinator`` and the layers below, and of ``tidelog.broker.member`` the configuration, the
controller and the nodes.
Invariant: a request to a node that hangs or is dead fails after a timeout. Loop thread only.
"""
