"""Record-level work of indexing and looking up: plain reference, compiled routines, choice between them."""
