"""Record batches (magic 2) and message sets (magic 0 and 1), with their codecs and checksums.

Imports: ``tidelog.protocol.compiled`` and modules such as ``types`` and ``errors``; no other subpackage. Invariant:
decompression is bounded in every codec, and its work is linear in its input and output.
"""
