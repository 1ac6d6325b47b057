"""State of readers: the partitions of fetch sessions, where readers continue, and batches converted for old clients.

Imports: ``tidelog.broker.loop`` and the packages below the broker; the conversion for old clients also ``Partition``.
Invariant: this package only makes reads cheaper or converts them; ``Partition`` decides what a reader may see.
"""
