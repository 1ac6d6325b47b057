"""Record-level work of indexing and looking up: the plain reference, the compiled routines, and who chooses."""
