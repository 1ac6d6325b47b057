"""The runtime that all coordinators use: it loads the shards of an internal topic (a state machine for each partition),
appends the shards' records, replays the records, and runs the shards' timers.

Imports: no other package of the coordinators.
Invariant: records are appended, then replayed, then the request is answered; after a failed append nothing is replayed.
Classic groups are the exception: their records are replayed only when a partition is loaded. Loop thread only.
"""
