"""The transaction coordinator: states of transactional ids in ``__transaction_state``, and markers in partitions.

Imports: ``tidelog.broker.coordinator.share_state`` and ``runtime``; never ``group``.
Invariant: the prepare record is committed before any marker, and the complete record follows all markers. Loop thread
only.
"""
