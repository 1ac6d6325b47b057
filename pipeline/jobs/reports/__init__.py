"""Reports of jobs: the audit's report and pictures, and the report of an export; and the plan of an audit's comparison
with a table.

Imports: ``audit``, ``export``, ``iceberg``, ``exporting`` and ``source`` of ``tidelog.pipeline.jobs``, and the layers
below ``jobs``. Invariant: a report only shows what its job found; it decides nothing.
"""
