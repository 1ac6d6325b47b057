"""Reports of jobs: the audit's report, comparison and pictures, and the report of an export."""
