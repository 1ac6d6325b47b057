"""Reports of jobs: the audit's report and pictures, and the report of an export.

Also parts of an audit's comparison with a table: its plan, and the scan for rows that no export recorded.

Imports: ``audit``, ``export``, ``iceberg``, ``exporting`` and ``source`` of ``tidelog.pipeline.jobs``, and the layers
below ``jobs``. Invariant: a report only shows what its job found; it decides nothing.
"""
