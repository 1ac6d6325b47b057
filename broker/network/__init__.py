"""Sockets: accepting, receiving frames, sending answers and file slices.

Imports: ``tidelog.broker.requests`` and the layers below; no handler.
Invariant: a frame is handled when it is whole, and requests received in part are bounded (``request_memory``).
"""
