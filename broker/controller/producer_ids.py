"""Producer ids that are never repeated: handed out from blocks that the metadata store has given away before (KIP-98).

A block is taken by one transaction that moves ``/producer_ids/next``; a crash loses the rest of the block and nothing
else, so an id is never handed out twice. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.metadata.store import Compare, Put
from tidelog.protocol.errors import CoordinatorNotAvailableError

if TYPE_CHECKING:
    from tidelog.broker.metadata.store import MetadataStore

NEXT_BLOCK_KEY = "/producer_ids/next"
BLOCK_SIZE = 1000
"""Kafka's size: 2**63 ids last for 2**53 restarts."""
_ATTEMPTS = 10


class ProducerIdManager:
    """Hands out producer ids."""

    __slots__ = ("_end", "_next", "_store")

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._end = 0

    def next_id(self) -> int:
        """Return an id that was never handed out before.

        Raises CoordinatorNotAvailableError when other nodes take every block before us.
        """
        if self._next == self._end:
            self._next = self._take_block()
            self._end = self._next + BLOCK_SIZE
        self._next += 1
        return self._next - 1

    def _take_block(self) -> int:
        for _ in range(_ATTEMPTS):
            stored = self._store.get(NEXT_BLOCK_KEY)
            first, revision = (0, 0) if stored is None else (int(stored.value), stored.mod_revision)
            put = Put(NEXT_BLOCK_KEY, str(first + BLOCK_SIZE).encode())
            if self._store.txn([Compare(NEXT_BLOCK_KEY, revision)], [put], []) is not None:
                return first
        raise CoordinatorNotAvailableError
