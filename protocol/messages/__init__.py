"""Messages of the protocol: one module per API declares its request and response once for all versions.

In docstrings a *flexible* version is the first with compact lengths and tagged fields (KIP-482). In tables of versions
"v2  log append time" means that version 2 adds this field, error code or feature.

Imports: ``tidelog.protocol.schema``, ``record`` and the layers below; not ``coordinator_records``.
Invariant: a module is imported on its API's first use.
"""
