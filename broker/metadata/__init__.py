"""The cluster's metadata: images, the records that change them, the metadata log, and the topics that clients see.

Imports: ``tidelog.broker.loop``, ``metrics`` and the packages below the broker.
Invariant: only the replay of records changes an image, and an image is immutable.
"""
