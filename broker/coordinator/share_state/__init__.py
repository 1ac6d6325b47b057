"""Durable state of share partitions: the coordinator over ``__share_group_state``."""
