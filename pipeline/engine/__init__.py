"""Record-level work over segments: the walk over batches and the hash of records, compiled, with their plain
reference."""
