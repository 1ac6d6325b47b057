"""Plan, parts and commits of an export, for all kinds of tables.

Imports: the layers below ``jobs``, and the runner, progress and source of ``jobs``.
Invariant: a commit moves the exported offsets forward and adds the rows in between, or it does neither.
"""
