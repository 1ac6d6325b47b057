"""The HTTP interface: listener, pages, look-ups, and metrics in Prometheus' format. Imported with its first
connection."""
