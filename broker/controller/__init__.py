"""Changes of the cluster's metadata: topics, replica placement, configs, quotas, users, features, producer id blocks.

Imports: ``tidelog.broker.config`` and the layers below; ``features`` also reads the table of APIs.
Invariant: a topic is shown to clients, and a deleted topic's logs are renamed, only after the commit is on disk. An
internal topic is shown earlier; what its coordinator answers waits for the commit.
"""
