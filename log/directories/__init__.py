"""The log directories of a broker: states, checkpoints, and partitions, which are found at the start and deleted here.

Imports: ``tidelog.log.recovery`` and the layers below.
Invariant: a partition has one entry, in one directory; each entry's lock guards its log's opening and deletion.
"""
