"""Segment files as the pipeline sees them, local or in an object store: listing, stamps, headers and sparse indices."""
