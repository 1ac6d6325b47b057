"""Groups, share states and transactions as state machines over the log.

Imports: ``tidelog.broker.share``, ``find``, ``quota`` and the layers below. Inside: ``coordinators``, then
``transaction`` and ``group``, which do not know each other, then ``share_state``, then ``runtime``.
Invariant: durable state changes in ``replay`` alone, when serving and when loading. Loop thread only.
"""
