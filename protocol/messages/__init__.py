"""Messages of the protocol: one module per API declares its request and response once for all versions.

In their docstrings "v2 throttle time" means that version 2 adds this field, error code or feature. The first *flexible*
version is the first with compact lengths and tagged fields (KIP-482).

Imports: ``tidelog.protocol.schema``, ``record`` and the layers below; not ``coordinator_records``.
Invariant: a module is imported on its API's first use.
"""
