"""Sockets: accepting, receiving frames, sending answers and file slices.

Imports: ``tidelog.broker.requests`` and the layers below; no handler. Invariant: a frame is handled when it is
complete, and the memory of partly received requests is bounded (``request_memory``).
"""
