"""Records over the wire: an idempotent producer, a fetcher, a reader, and membership in a consumer group.

Imports: tidelog.client, tidelog.protocol, and ``FoundRecord`` of tidelog.find.
"""
