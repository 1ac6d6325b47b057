"""Observer of a quorum's metadata: its fetches, the batches that are not committed yet, snapshots, published images.

Imports: ``tidelog.broker.cluster.quorum``, ``tidelog.broker.metadata`` and the packages below the broker.
Invariant: everything here is sans-io, as in the package around it; an image is made of committed records alone.
"""
