"""Declared messages, whose fields have version ranges, and their coders, one for each version, built at its first use.

Imports: ``tidelog.protocol.compiled`` and modules such as ``types`` and ``errors``; no other subpackage.
Invariant: a message is declared once for all its versions.
"""
