"""Declared messages and their coders: fields with version ranges, compiled to Python for one version on first use.

Imports: ``tidelog.protocol.compiled`` and modules such as ``types`` and ``errors``; no other subpackage.
Invariant: a message is declared once for all its versions.
"""
