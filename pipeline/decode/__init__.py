"""From batches to Arrow columns: decoding, aborted records, and rows."""
