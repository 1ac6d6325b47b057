"""The broker's configuration: declared keys, sources of values, and the answers of DescribeConfigs.

Imports: ``tidelog.broker.replica``, ``metadata``, ``loop`` and ``metrics``, and the packages below the broker.
Invariant: code reads each declared key, unless all its allowed values mean the same; keys of Kafka without effect here
are in ``NO_EFFECT``; an invalid static value prevents the start.
"""
