"""Decisions about clients: what they may do and how much of it, their SCRAM credentials, the metrics they push.

Imports: ``tidelog.broker.config``, ``tidelog.broker.controller`` beside it, and the layers below.
Invariant: what is set is a record of the metadata log; a change is answered once its record is on disk.
"""
