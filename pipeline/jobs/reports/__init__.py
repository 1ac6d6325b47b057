"""Reports of jobs: the audit's report, comparison and pictures, and the report of an export.

Imports: the results in ``tidelog.pipeline.jobs.audit`` and ``export``, and the layers below ``jobs``.
Invariant: a report only shows what its job found; it decides nothing.
"""
