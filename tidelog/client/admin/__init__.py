"""Administration of a cluster, as Kafka's admin API has it: topics, groups, offsets, configs, ACLs, quotas, users.

Imports: ``tidelog.client`` and ``tidelog.protocol``.
"""
