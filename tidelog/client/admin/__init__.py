"""Administration of a cluster, as Kafka's admin API has it: brokers, topics, groups, offsets, configs, ACLs, quotas,
users, transactions.

Imports: ``tidelog.client`` and ``tidelog.protocol``.
"""
