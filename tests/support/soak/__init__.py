"""A soak: a broker under load for a long time, killed again and again, and checked at the end.

party     one or a few clients, driven by a thread: it notes what the broker must hold, and compares at the end
world     what all parties share: the broker's address and directory, the seed, the signal to stop
position  (partition, offset) in a topic
number    counts a writer's records (or transactions) from 0; the value of a record is made from it
"""
