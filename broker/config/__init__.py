"""The broker's configuration: declared keys, sources of values, and the answers of DescribeConfigs.

Imports: ``tidelog.broker.replica``, ``metadata``, ``loop`` and ``metrics``, and the packages below the broker.
Invariant: a key is declared with its reader or listed in ``NO_EFFECT``; an invalid value prevents the start.
"""
