"""Limits of the work that the records of one request may cause, in all and within a turn of the loop.

A request of a megabyte can decompress to gigabytes and hold millions of records. Two kinds of limits keep that in hand:

    of a request   bytes after decompression, records in compressed batches, records taken apart one by one
                   beyond them: MessageTooLargeError, upon which Java's producer splits its batch (KIP-126)
    of a turn      the same and smaller; beyond them: TooMuchForTurnError, and the caller does the work in a thread

Coordinators append without a budget: no client chose what they write. A budget belongs to one request, and is used by
one thread at a time.
"""

from __future__ import annotations

from tidelog.protocol.errors import MessageTooLargeError
from tidelog.protocol.record.compression import decompress
from tidelog.protocol.record.record_batch import Buffer

MAX_PLAIN_BYTES = 100 * 1024 * 1024
"""What the records of one request may decompress to: as much as a request may hold by ``socket.request.max.bytes``.
Honest requests are below: 1 MB of the best-packed text decompresses to 30 MB. gzip takes 1.4 to 3.3 ms per MiB."""
MAX_COMPRESSED_RECORDS = 1 << 21
"""Records in the compressed batches of one request. Compiled routines take 10 ns each, plain Python 1 µs."""
MAX_REBUILT_RECORDS = 1 << 15
"""Records of one request that become objects: old message sets, batches for topics of old formats, wrong offset deltas.
Each takes 6 to 20 µs and 600 bytes, and while there are 100,000 of them the garbage collector stops all threads for
50 ms. A megabyte has no room for more messages with useful content."""

TURN_PACKED_BYTES = 256 * 1024
TURN_PLAIN_BYTES = 1024 * 1024
TURN_RECORDS, TURN_RECORDS_COMPILED = 2_000, 100_000
TURN_REBUILT_RECORDS = 200
TURN_HEADER_BYTES = 32 * 1024
"""Record headers that plain Python walks over within a turn: 0.3 µs each, and the smallest has two bytes."""
TURN_OLD_BYTES = 16 * 1024
"""An old message set up to this size, packed or not, is validated within a turn."""
TURN_RECOMPRESSED_BYTES = 16 * 1024
"""The highest level of zstd takes some milliseconds for as much."""

NO_LIMIT = 1 << 62


class AppendPostponedError(Exception):
    """Valid records cannot be appended at the moment."""


class TooMuchForTurnError(AppendPostponedError):
    """The records take longer than a turn of the loop may: validate them in a thread. Nothing was changed."""


class WorkBudget:
    """Work that one request may still cause. ``in_turn`` says whether the limits of a turn hold at the moment."""

    __slots__ = ("_compressed_records", "_plain_bytes", "_rebuilt_records", "header_bytes", "in_turn")

    def __init__(
        self,
        *,
        in_turn: bool,
        plain_bytes: int = MAX_PLAIN_BYTES,
        compressed_records: int = MAX_COMPRESSED_RECORDS,
        rebuilt_records: int = MAX_REBUILT_RECORDS,
    ) -> None:
        self.in_turn = in_turn
        self.header_bytes = TURN_HEADER_BYTES if in_turn else NO_LIMIT
        """Bytes of record headers that may be walked over in plain Python."""
        self._plain_bytes = plain_bytes
        self._compressed_records = compressed_records
        self._rebuilt_records = rebuilt_records

    def enter_turn(self, *, in_turn: bool) -> None:
        """Apply the limits of a turn, or only those of the request. Not for ``TURN``, which all requests share."""
        assert self is not TURN
        self.in_turn = in_turn
        self.header_bytes = TURN_HEADER_BYTES if in_turn else NO_LIMIT

    def decompress(self, section: Buffer, codec: int, max_bytes: int, count: int) -> Buffer:
        """Decompress the records section of a magic 2 batch that claims ``count`` records, at most ``max_bytes`` of it.

        Raises what ``tidelog.protocol.record.compression.decompress`` raises, TooMuchForTurnError.
        """
        if count > self._compressed_records:
            raise MessageTooLargeError(
                f"The compressed batches of a request hold over {MAX_COMPRESSED_RECORDS} records"
            )
        limit = min(max_bytes, self._plain_bytes)
        if self.in_turn and limit > TURN_PLAIN_BYTES:
            if len(section) > TURN_PACKED_BYTES:
                raise TooMuchForTurnError
            try:
                plain = decompress(section, codec, TURN_PLAIN_BYTES)
            except MessageTooLargeError:
                raise TooMuchForTurnError from None
        else:
            plain = decompress(section, codec, limit)
        self._compressed_records -= count  # after what may be left to a thread, which counts it then
        self._plain_bytes -= len(plain)
        return plain

    def plain_limit(self, max_bytes: int, turn_bytes: int) -> int:
        """Return the bytes a batch may decompress to, when its topic allows ``max_bytes`` and a turn ``turn_bytes``."""
        limit = min(max_bytes, self._plain_bytes)
        return min(limit, turn_bytes) if self.in_turn else limit

    def ensure_not_turn_limit(self, max_bytes: int, turn_bytes: int) -> None:
        """Raise TooMuchForTurnError if a thread may go on with what passed :meth:`plain_limit`."""
        if self.in_turn and turn_bytes < min(max_bytes, self._plain_bytes):
            raise TooMuchForTurnError

    def spend_plain_bytes(self, size: int) -> None:
        """Count what was decompressed elsewhere."""
        self._plain_bytes -= size

    @property
    def rebuilt_records(self) -> int:
        """Number of records that may still be taken apart."""
        return self._rebuilt_records

    def rebuild_old(self, count: int) -> None:
        """Count like :meth:`rebuild`, for the messages of an old set, whose turn is bounded by bytes."""
        self.ensure_rebuildable(count)
        self._rebuilt_records -= count

    def rebuild(self, count: int) -> None:
        """Ask to take ``count`` records apart one by one. Raises MessageTooLargeError, TooMuchForTurnError."""
        if self.in_turn and count > TURN_REBUILT_RECORDS:
            raise TooMuchForTurnError
        self.rebuild_old(count)

    def ensure_rebuildable(self, count: int) -> None:
        """Raise MessageTooLargeError if :meth:`rebuild` would outside a turn."""
        if count > self._rebuilt_records:
            raise MessageTooLargeError(
                f"A request has over {MAX_REBUILT_RECORDS} records of old formats or with offset deltas out of order"
            )

    def ensure_for_turn(self, amount: int, turn_amount: int) -> None:
        """Raise TooMuchForTurnError within a turn if ``amount`` is above its limit."""
        if self.in_turn and amount > turn_amount:
            raise TooMuchForTurnError


def one_batch_budget() -> WorkBudget:
    """Build a budget for a request of one batch that may go on in a thread. Its topic limits the bytes, and so the
    records that compiled routines walk over, but would allow far too many records that become objects.
    """
    return WorkBudget(in_turn=True, plain_bytes=NO_LIMIT, compressed_records=NO_LIMIT)


TURN = WorkBudget(in_turn=True, plain_bytes=NO_LIMIT, compressed_records=NO_LIMIT, rebuilt_records=NO_LIMIT)
"""For a request of one batch that is appended in one turn, within the limits of a turn alone. It is shared, so its
counts mean nothing; loop thread only.
"""
NO_BUDGET = WorkBudget(in_turn=False, plain_bytes=NO_LIMIT, compressed_records=NO_LIMIT, rebuilt_records=NO_LIMIT)
"""For records that the broker itself writes. Shared by all threads, so its counts mean nothing."""
