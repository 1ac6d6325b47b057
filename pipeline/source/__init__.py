"""``format("tidelog")`` for reading: the batch reader and the streaming reader.

Imports: ``tidelog.pipeline.decode`` and the layers below; not ``audit``, ``export`` or ``sink``.
Invariant: a plan follows from the options alone, never from a query's filters.
"""
