"""One replica of a partition in a simulated broker: the real ``Partition`` over a real log, and its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.support.logs import read_bytes
from tidelog.broker.cluster.fetching.work import LogPosition
from tidelog.broker.cluster.partition_state import LeaderState
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.replication.following import Following
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

ACK_TIMEOUT_MS = 30_000.0


class Entry(NamedTuple):
    """A record of a replica: the leader epoch in which it was written, and its value."""

    epoch: int
    value: bytes


class Replica:
    """A partition, its state in the newest metadata image, and the records of its log."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log = partition.local_log
        self.state = PartitionState((), (), leader_epoch=-1, partition_epoch=-1)
        self.entries: list[Entry] = []
        """The records of the log at the last ``refresh``."""
        self._version = -1
        self.refresh()

    @property
    def leader(self) -> LeaderState | None:
        """The leader's state of the partition, None while this replica follows."""
        leading = self.partition.leading
        return None if leading is None else leading.leader_state

    def refresh(self) -> bool:
        """Read the records since the last call; return whether there are any. A log that has failed stays as it was."""
        if not self.log.is_serving:
            return False
        end, version = self.log.log_end_offset, self.log.version
        if version != self._version:
            self.entries.clear()
            self._version = version
        if end == len(self.entries):
            return False
        while len(self.entries) < end:
            for batch in iter_batches(read_bytes(self.log, len(self.entries))):
                epoch = batch.partition_leader_epoch
                self.entries += [Entry(epoch, record.value or b"") for record in batch.records()]
        return True

    def position(self) -> LogPosition:
        """Return the position at which a fetcher continues: the ends and epochs of the log."""
        return Following(self.log, bool).position

    def append(
        self, value: bytes, acks: int, settled: Callable[[int | KafkaError], None], options: BatchOptions
    ) -> None:
        """Append a client's record; ``settled`` gets its offset once it is acknowledged, or an error."""
        records = memoryview(build_batch([Record(0, 1_700_000_000_000, None, value)], options))
        try:
            offset = self.partition.append_records(records, acks).first_offset
        except KafkaError as error:
            settled(error)
            return
        waiting = self.partition.when_acknowledged(offset, acks, ACK_TIMEOUT_MS)
        if waiting is None:
            settled(offset)
        else:
            waiting.on_done(lambda done: settled(outcome(done, offset)))


def outcome(done: Deferred[None], offset: int) -> int | KafkaError:
    """Return the offset, or the error with which a wait ended."""
    try:
        done.result()
    except KafkaError as error:
        return error
    return offset
