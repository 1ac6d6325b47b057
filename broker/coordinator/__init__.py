"""Groups and transactions as state machines over the log."""
