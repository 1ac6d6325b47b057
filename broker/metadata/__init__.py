"""The cluster's metadata: images, the records that change them, the metadata log, and the topics that clients see.

Imports: ``tidelog.broker.loop``, ``metrics`` and the packages below the broker.
Invariant: an image is immutable, and only the replay of records leads to the next one.
"""
