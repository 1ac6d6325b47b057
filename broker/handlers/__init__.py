"""One module per API key: what the broker answers."""
