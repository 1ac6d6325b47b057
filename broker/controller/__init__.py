"""Decisions about the cluster: topics, replica placement, configs, quotas, users, features, producer id blocks."""
