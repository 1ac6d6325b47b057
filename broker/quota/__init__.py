"""Client quotas at work: rates by user and client, and how long a client has to wait."""
