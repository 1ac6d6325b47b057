"""``format("tidelog")`` for writing: staged batches, and one commit that publishes them once."""
