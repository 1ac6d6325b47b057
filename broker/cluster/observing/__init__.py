"""Observer of a quorum's metadata: its fetches, uncommitted batches, snapshots, and the images that it publishes.

Imports: ``tidelog.broker.cluster.quorum``, ``tidelog.broker.metadata`` and the packages below the broker.
Invariant: everything here is sans-io, as in all of ``tidelog.broker.cluster``; an image has committed records only.
"""
