"""Decisions about the cluster: topics, replica placement, configs, quotas, users, features, producer id blocks.

Imports: ``tidelog.broker.config`` and the layers below; ``features`` also reads the table of APIs.
Invariant: no topic is shown and no log is renamed before the commit that says so is on disk.
"""
