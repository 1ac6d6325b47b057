"""Plan, parts and commits of an export, whatever kind of table takes them.

Imports: the layers below ``jobs``, and the runner, progress and source of ``jobs``.
Invariant: a commit moves the offset vector and adds the rows in between, or neither.
"""
