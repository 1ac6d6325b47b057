"""Producer ids of a member, from blocks that the active controller allocates (KIP-730).

The next block is fetched when a tenth of the present one is left. While there is no id, clients get a retriable error,
as in Kafka.
Source: RPCProducerIdManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog.broker.cluster.quorum import QuorumView
from tidelog.broker.controller.metadata_controller import MetadataController
from tidelog.broker.controller.producer_ids import ProducerIdManager
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

logger = logging.getLogger(__name__)

RETRY_S = 0.5


class ProducerIdBlocks(ProducerIdManager):
    """Producer ids of the present block, then of the next one. Loop thread only."""

    __slots__ = ("wanted",)

    def __init__(self, controller: MetadataController) -> None:
        super().__init__(controller)
        self.wanted = asyncio.Event()
        """Set while a block has to be fetched."""
        self.wanted.set()

    def when_available(self) -> Deferred[None]:
        """Return a settled Deferred: controllers may be away for long, so clients do not wait but get the error of
        ``take``.
        """
        return deferred_value(None)

    def fetch(self) -> None:
        """Ask for the next block."""
        self.wanted.set()

    def add_block(self, block: range) -> None:
        """Add a block that the controller has allocated."""
        self.wanted.clear()
        super().add_block(block)


async def fetch_blocks(
    producer_ids: ProducerIdBlocks, channel: Channel, quorum: QuorumView, node_id: int, broker_epoch: int
) -> None:
    """Fetch a block from the active controller whenever one is wanted, until cancelled."""
    request = AllocateProducerIdsRequest(broker_id=node_id, broker_epoch=broker_epoch)
    while True:
        await producer_ids.wanted.wait()
        try:
            answer = await channel.ask(quorum.address, request, AllocateProducerIdsResponse)
        except ChannelError as error:
            logger.info("cannot fetch a block of producer ids, trying again: %s", error)
            await asyncio.sleep(RETRY_S)
            continue
        if answer.error_code:
            logger.info("cannot fetch a block of producer ids, trying again: error %d", answer.error_code)
            await asyncio.sleep(RETRY_S)
        else:
            first = answer.producer_id_start
            producer_ids.add_block(range(first, first + answer.producer_id_len))
