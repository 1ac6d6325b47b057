"""Producer ids of a member: blocks that the active controller gives (KIP-730).

The next block is fetched when a tenth of one is left; while there is none, clients are told to try again, as Kafka's
are. Source: RPCProducerIdManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio

from tidelog.broker.controller.metadata_controller import MetadataController
from tidelog.broker.controller.producer_ids import ProducerIdManager
from tidelog.broker.loop.deferred import Deferred, completed


class ProducerIdBlocks(ProducerIdManager):
    """Hands out producer ids of the present block, and then of the next one. Loop thread only."""

    __slots__ = ("wanted",)

    def __init__(self, controller: MetadataController) -> None:
        super().__init__(controller)
        self.wanted = asyncio.Event()
        """Set while another block has to be fetched."""
        self.wanted.set()

    def when_available(self) -> Deferred[None]:
        """Return what is settled: the controllers may be away for long, and ``take`` says so."""
        return completed(None)

    def fetch(self) -> None:
        """Ask for the next block."""
        self.wanted.set()

    def add_block(self, block: range) -> None:
        """Add a block that the controller gave."""
        self.wanted.clear()
        super().add_block(block)
