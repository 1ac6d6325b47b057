"""Declared configuration keys, one module for each part of the broker that reads them.

Imports: ``tidelog.protocol``'s declarations of keys and the packages below the broker.
Invariant: a key is declared with its reader or listed in ``NO_EFFECT``.
"""
