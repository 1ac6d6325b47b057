"""Producer ids of a member: blocks that the active controller gives (KIP-730).

The next block is fetched when 90 % of one are used; while there is none, clients are told to try again, as Kafka's are.
Source: RPCProducerIdManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from tidelog.broker.controller.metadata_controller import MetadataController
from tidelog.broker.controller.producer_ids import ProducerIdManager
from tidelog.protocol.errors import CoordinatorLoadInProgressError

logger = logging.getLogger(__name__)

PREFETCH_SHARE = 0.9


class Block(NamedTuple):
    """Producer ids from ``first`` up to, not including, ``end``."""

    first: int
    end: int


class ProducerIdBlocks(ProducerIdManager):
    """Hands out producer ids of the present block, and then of the next one. Loop thread only."""

    __slots__ = ("_following", "_prefetch_at", "wanted")

    def __init__(self, controller: MetadataController) -> None:
        super().__init__(controller)
        self._following: Block | None = None
        self._prefetch_at = 0
        self.wanted = asyncio.Event()
        """Set while another block has to be fetched."""
        self.wanted.set()

    def next_id(self) -> int:
        """Return an id that was never handed out before. Raises CoordinatorLoadInProgressError without a block."""
        if self._next == self._end:
            if self._following is None:
                self.wanted.set()
                raise CoordinatorLoadInProgressError
            self._begin(self._following)
            self._following = None
        if self._next >= self._prefetch_at and self._following is None:
            self.wanted.set()
        self._next += 1
        return self._next - 1

    def take(self, block: Block) -> None:
        """Take a block that the controller gave."""
        self.wanted.clear()
        if self._next == self._end:
            self._begin(block)
        else:
            self._following = block

    def _begin(self, block: Block) -> None:
        self._next, self._end = block
        self._prefetch_at = block.first + int((block.end - block.first) * PREFETCH_SHARE)
