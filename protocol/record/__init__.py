"""Record batches (magic 2) and message sets (magic 0 and 1), with their codecs and checksums.

Imports: the modules of ``tidelog.protocol`` from ``header`` to ``errors``; not ``schema``. Invariant: decompression is
bounded in every codec, and its work is linear in its input and output.
"""
