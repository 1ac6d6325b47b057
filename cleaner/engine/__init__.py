"""Record-level work of a round: the map of keys, the tables of batches, and the compiled routines with their plain
references."""
