"""The cluster's topics: the image that requests read, and the store under it.

Imports: ``tidelog.broker.loop``, ``metrics`` and the packages below the broker.
Invariant: the store is the truth; the image changes after the store has committed, and a ``TopicImage`` is immutable.
"""
