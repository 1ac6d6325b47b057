"""Declared configuration keys, one module for each part of the broker that reads them.

Imports: ``tidelog.protocol``'s declarations of keys and the packages below the broker.
Invariant: some code reads each declared key, unless all its allowed values mean the same; a key of Kafka without effect
here is listed in ``NO_EFFECT``.
"""
