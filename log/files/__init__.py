"""Files of a log directory: record files, checkpoints, and the names of partition directories and segments.

Imports: ``tidelog.log.system`` and ``tidelog.protocol``.
Invariant: a checkpoint is replaced as a whole; nothing reads a ``.log`` file past ``FileRecords.size``, the end of the
last complete append.
"""
