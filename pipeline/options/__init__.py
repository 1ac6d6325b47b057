"""Options of the source, the sink and tables, offsets as JSON, and the columns."""
