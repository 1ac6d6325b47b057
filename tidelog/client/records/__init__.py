"""Records over the wire: an idempotent producer, a fetcher, and membership in a consumer group.

Imports: tidelog.client, tidelog.protocol, and the record of tidelog.find.
"""
