"""Transaction markers for partitions that other brokers lead: the requests, and how answers are read.

Sans-io. Source: TransactionMarkerRequestCompletionHandler of Kafka 4.3; KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.protocol import errors
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_DONE = {errors.NONE, errors.InvalidProducerEpochError.code, errors.TransactionCoordinatorFencedError.code}
"""Codes after which a marker is not sent again: it was written, or a newer producer or coordinator epoch refuses it."""


class Marker(NamedTuple):
    """A marker that ends a transaction in one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int
    """Not sent to brokers before 4.2 (KIP-1228)."""


def request_of(markers: Iterable[Marker]) -> WriteTxnMarkersRequest:
    """Return one request for these markers: one entry for each producer, with all its partitions."""
    entries: dict[tuple[int, int, bool, int, int], dict[str, list[int]]] = {}
    for topic, partition, *end in markers:
        entries.setdefault(tuple(end), {}).setdefault(topic, []).append(partition)  # type: ignore[arg-type]
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=is_commit,
                coordinator_epoch=coordinator_epoch,
                transaction_version=version,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=partitions)
                    for name, partitions in topics.items()
                ],
            )
            for (producer_id, epoch, is_commit, coordinator_epoch, version), topics in entries.items()
        ]
    )


def find_finished(markers: Iterable[Marker], answer: WriteTxnMarkersResponse) -> set[Marker]:
    """Return the markers that need not be sent again."""
    codes: Mapping[tuple[int, str, int], int] = {
        (entry.producer_id, topic.name, one.partition_index): one.error_code
        for entry in answer.markers
        for topic in entry.topics
        for one in topic.partitions
    }
    unknown = errors.UnknownServerError.code
    return {one for one in markers if codes.get((one.producer_id, one.topic, one.partition), unknown) in _DONE}
