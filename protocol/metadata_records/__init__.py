"""Schemas of the records of ``__cluster_metadata``."""
