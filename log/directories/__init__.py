"""The log directories of a broker: their states and checkpoints, what lies in them, and how it is found and removed.

Imports: ``tidelog.log.recovery`` and the layers below.
Invariant: a partition has one entry, in one directory; each entry's lock guards its log's opening and deletion.
"""
