"""Settings for clients: their ACLs, quotas and SCRAM credentials, and the metrics that they push.

Imports: ``tidelog.broker.config``, the modules of ``tidelog.broker.controller``, and the layers below.
Invariant: each setting is a record of the metadata log; a change is answered once its record is on disk.
"""
