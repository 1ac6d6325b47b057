"""Conversion of old messages (magic 0 and 1) into version 2 batches, for the cleaner."""

from __future__ import annotations

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import IntegerArray
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

#: A version 2 batch gets no further message once it has this many, or messages of this many bytes.
CONVERTED_RECORDS = 500
CONVERTED_BYTES = 64 * 1024
#: Largest distance of two offsets in a version 2 batch, whose header has it as an int32.
MAX_OFFSET_DELTA = 2**31 - 1


class LegacyRun:
    """Consecutive old messages that become one version 2 batch; a compressed set becomes a batch of its own.

    ``unreadable`` is the row of a message that cannot be read, whose bytes are kept (POISON). Its run has no other
    messages.
    """

    def __init__(self) -> None:
        self.rows: list[IntegerArray] = []
        self.unreadable: IntegerArray | None = None
        self._records: list[Record] = []
        self._codec = self._timestamp_type = self._bytes = 0

    def add(self, row: IntegerArray, batch: LegacyRecordBatch, records: list[Record]) -> bool:
        """Add the ``records`` of one message or compressed set, whose row in the batch table is ``row``. Return False
        if they need another run: then nothing is added."""
        if self.unreadable is not None:
            return False
        full = len(self._records) >= CONVERTED_RECORDS or self._bytes >= CONVERTED_BYTES
        alike = not self._codec and not batch.compression_type and batch.timestamp_type == self._timestamp_type
        # Under log append time, messages share a batch only if their times are equal, as a batch has only one.
        same_stamp = not self._timestamp_type or (self._records and self._records[0].timestamp == batch.max_timestamp)
        follows = not self._records or (
            records[0].offset > self._records[-1].offset
            and records[-1].offset - self._records[0].offset <= MAX_OFFSET_DELTA
        )
        if self.rows and (full or not alike or not same_stamp or not follows):
            return False
        self.rows.append(row.copy())
        self._records += records
        self._codec, self._timestamp_type = batch.compression_type, batch.timestamp_type
        self._bytes += int(row[at.SIZE])
        return True

    def finish(self) -> tuple[IntegerArray, bytearray]:
        """Return the row and bytes of the version 2 batch, and empty the run, which must have messages. The records are
        not compressed yet, although the header names the codec."""
        records, rows = self._records, self.rows
        append_time = records[0].timestamp if self._timestamp_type else None
        batch = build_batch(records, BatchOptions(log_append_time=append_time))
        # The header names the codec, so that the cleaned batch is compressed as the set was.
        attributes = self._codec | (at.TIMESTAMP_TYPE_MASK if self._timestamp_type else 0)
        batch[21:23] = attributes.to_bytes(2, "big")
        row = rows[0]
        row[at.SIZE] = sum(int(other[at.SIZE]) for other in rows)
        row[at.BASE_OFFSET], row[at.COUNT] = records[0].offset, len(records)
        row[at.LAST_OFFSET_DELTA] = records[-1].offset - records[0].offset
        row[at.ATTRIBUTES], row[at.BASE_TIMESTAMP] = attributes, records[0].timestamp
        row[at.MAX_TIMESTAMP] = max(record.timestamp for record in records)
        row[at.PRODUCER_ID] = row[at.PRODUCER_EPOCH] = -1
        self.__init__()  # type: ignore[misc]
        return row, batch
