"""Files beside the records of a partition: file records, checkpoints, and a partition's directory name.

Imports: ``tidelog.log.system`` and ``tidelog.protocol``.
Invariant: a checkpoint is replaced as a whole; nothing reads a ``.log`` file past ``size``, the end of its last whole
append.
"""
