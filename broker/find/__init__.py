"""Look-ups by key, tag and time for clients: indexing of topics, the look-up itself, and virtual topics."""
