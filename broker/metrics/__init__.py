"""The registry of metrics, their names, and the metrics of logs, requests, rates and connections.

Imports: the packages below the broker, and no other package of the broker.
Invariant: a gauge is computed only when it is read; counting is an integer addition. Loop thread only.
"""
