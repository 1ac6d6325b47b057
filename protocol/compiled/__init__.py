"""Common parts of compiled modules: integers at any address, CRC-32C, and a stand-in for the module ``cython``.

Imports: nothing.
Invariant: each name of ``words`` is declared twice, in C (``words.pxd``, ``words.h``) and in Python (``words.py``), and
both give equal results.
"""
