"""Declared messages and their coders: fields with version ranges, compiled to Python for one version on first use.

Imports: the modules of ``tidelog.protocol`` from ``header`` to ``errors``; not ``record``.
Invariant: a message is declared once for all its versions.
"""
