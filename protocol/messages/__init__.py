"""Messages of the protocol: one module per API declares its request and response once for all versions.

In docstrings a *flexible* version has compact lengths and tagged fields (KIP-482); all versions after it have them,
too. In tables of versions "v2  log append time" means that version 2 adds this field, error code or feature.

Imports: ``tidelog.protocol.schema``, ``record`` and the layers below; not ``coordinator_records``.
Invariant: importing the broker imports none of these modules except ``fetch``; the others are imported when they are
first used.
"""
