"""A soak: a broker under load for a long time, killed again and again, and checked at the end.

party   a thread that is one client, or a few: it writes down what the broker must hold, and compares at the end
world   what all parties share: the broker's address and directory, the seed, the signal to stop
place   (partition, offset) in a topic
"""
