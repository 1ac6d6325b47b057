"""Checks of produced batches and message sets, and their conversion to the topic's format."""
