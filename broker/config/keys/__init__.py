"""Declared configuration keys, one module for each part of the broker that reads them.

Imports: ``tidelog.protocol``'s declarations of keys and the packages below the broker.
Invariant: a key is declared if some code reads it; a key of Kafka without effect here is listed in ``NO_EFFECT``.
"""
