"""Coordinators of groups, transactions and share states: state machines whose records are in internal topics.

Imports: ``tidelog.broker.share``, ``find``, ``quota`` and the layers below. Inside, each may import the later ones:
``coordinators``, then ``transaction`` and ``group``, which do not import each other, then ``share_state``, ``runtime``.
Invariant: durable state changes only when its records are replayed, after each append and when a partition is loaded.
Classic groups are the exception: they change before their record is appended, or in its callback. Loop thread only.
"""
