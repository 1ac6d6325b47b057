"""Work per record: a plain Python reference and compiled kernels.

Imports: ``tidelog.log.segment``, ``index``, ``files`` and ``system``, and ``tidelog.protocol``.
Invariant: the reference and the kernels give equal results.
"""
