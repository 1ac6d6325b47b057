"""The registry of metrics, and those of logs and of clients.

Imports: the packages below the broker, and no other package of the broker.
Invariant: a gauge is asked only when it is read; a counter is an integer add. Loop thread only.
"""
