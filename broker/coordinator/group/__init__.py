"""Groups of every protocol: the shard, committed offsets, administration, assignors and changes of protocol."""
