"""Schemas of the records that coordinators keep in ``__consumer_offsets``, ``__transaction_state`` and
``__share_group_state``."""
