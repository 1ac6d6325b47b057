"""Transactions: the coordinator's shard, the state of a transactional id, markers, and the check before an append."""
