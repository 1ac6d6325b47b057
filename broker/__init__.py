"""The server: sockets, dispatch, partitions, coordinators.

Imports: ``tidelog.cleaner``, ``tidelog.log`` and ``tidelog.protocol``. pyproject.toml lists its packages in layers.
Invariant: the loop thread owns the broker's state; what crosses threads is immutable or protected by a lock.
"""
