"""Messages of the protocol: one module per API declares its request and response once for all versions.

Imports: ``tidelog.protocol.schema``, ``record`` and the layers below; not ``coordinator_records``.
Invariant: a module is imported on its API's first use.
"""
