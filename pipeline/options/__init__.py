"""Options of the source, the sink and tables, offsets as JSON, and the columns.

Imports: ``tidelog.pipeline.engine`` and the layers below; not ``plan``.
"""
