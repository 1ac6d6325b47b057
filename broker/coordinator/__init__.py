"""Coordinators: groups, share states and transactions as state machines over internal topics.

Imports: ``tidelog.broker.share``, ``find``, ``quota`` and the layers below. Inside: ``coordinators``, then
``transaction`` and ``group``, which do not know each other, then ``share_state``, then ``runtime``.
Invariant: only ``replay`` changes durable state, when serving and when loading; classic groups are the exception: they
change before their record is appended, or in its callback. Loop thread only.
"""
