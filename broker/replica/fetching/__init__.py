"""State of readers: which partitions a fetch session follows, where a reader goes on, and batches for old clients.

Imports: ``tidelog.broker.loop`` and the packages below the broker; the conversion for old clients also ``Partition``.
Invariant: it only makes reads cheaper or older; what a reader may see is decided by ``Partition``.
"""
