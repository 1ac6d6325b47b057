"""The runtime of all coordinators: shards over an internal topic, results with records, replay, timers and durability.

Imports: no other package of the coordinators.
Invariant: records are appended, then replayed, then answered; a failed append replays nothing. Loop thread only.
"""
