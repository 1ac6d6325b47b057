"""Limits of the work that records may cause: those of one request in all, those of a batch within one turn of the loop.

A request of a megabyte can decompress to gigabytes and hold millions of records. Two kinds of limits bound that work:

    of a request   bytes after decompression, records in compressed batches, records rebuilt or checked one by one
                   beyond them: MessageTooLargeError; Java's producer then splits its batch (KIP-126)
    of a turn      for one batch or old set that is validated within an iteration ("turn") of the loop: the
                   constants that begin with TURN_; beyond them: TooMuchForTurnError, and the caller does the work
                   in a thread

The limits of a turn are not added up over the batches of a request: its handler looks at the clock between them, and
goes on in a later turn if need be. A batch that is validated again, because a thread has to do it or others have
appended meanwhile, counts once (``restore``). Coordinators append without a budget, because the broker itself chooses
what they write. A budget belongs to one request, and is used by one thread at a time; ``TURN`` and ``NO_BUDGET`` are
shared.
"""

from __future__ import annotations

from tidelog.protocol.errors import MessageTooLargeError
from tidelog.protocol.record.compression import decompress
from tidelog.protocol.record.record_batch import Buffer

MAX_PLAIN_BYTES = 100 * 1024 * 1024
"""Largest number of bytes to which the records of one request may decompress: as many as ``socket.request.max.bytes``
allows in one request. Real data need less: 1 MB of very compressible text becomes 30 MB. gzip takes 1.4 to 3.3 ms per
MiB."""
MAX_COMPRESSED_RECORDS = 1 << 21
"""Largest number of records in the compressed batches of one request. Compiled routines take 10 ns for each, plain
Python 1 µs."""
MAX_REBUILT_RECORDS = 1 << 15
"""Largest number of records of one request that are rebuilt or checked one by one, and so become Python objects. They
are those of old message sets, and of batches for topics with old formats, with wrong offset deltas, or with a key or
timestamp at fault. Each takes 6 to 20 µs and 600 bytes, and with 100,000 of them the garbage collector stops all
threads for 50 ms. In a request of 1 MB, more messages than this have below 32 bytes each."""

TURN_PACKED_BYTES = 256 * 1024
TURN_PLAIN_BYTES = 1024 * 1024
"""Largest size in bytes of a magic 2 batch's records, compressed and decompressed, if they are decompressed within
a turn."""
TURN_RECORDS, TURN_RECORDS_COMPILED = 2_000, 100_000
"""Largest number of records of a magic 2 batch that are validated within a turn: by plain Python, by compiled
routines."""
TURN_REBUILT_RECORDS = 200
"""Largest number of records that are rebuilt or checked one by one within a turn."""
TURN_HEADER_BYTES = 32 * 1024
"""Largest number of bytes of record headers that plain Python walks over within a turn: 0.3 µs for each header of two
bytes or more."""
TURN_OLD_BYTES = 16 * 1024
"""Largest size in bytes of an old message set, before and after decompression, that is validated within a turn."""
TURN_RECOMPRESSED_BYTES = 16 * 1024
"""Largest number of bytes that are compressed within a turn: the highest level of zstd takes some milliseconds for
them."""

NO_LIMIT = 1 << 62


class AppendPostponedError(Exception):
    """Records cannot be appended now, though nothing is wrong with them: the caller validates them again."""


class TooMuchForTurnError(AppendPostponedError):
    """The records take longer than a turn of the loop may: validate them in a thread. Nothing was changed."""


class WorkBudget:
    """Work that one request may still cause. While ``in_turn`` is true, the limits of a turn apply too."""

    __slots__ = ("header_bytes", "in_turn", "left")

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
        """Largest number of bytes of a batch's record headers that plain Python may walk over."""
        self.left = plain_bytes, compressed_records, rebuilt_records
        """Bytes after decompression, compressed records and rebuilt records that the request may still have; a caller
        notes them before a batch, for :meth:`restore`."""

    def restore(self, left: tuple[int, int, int]) -> None:
        """Restore what was left before a batch, because the batch is validated again."""
        self.left = left

    def enter_turn(self, *, in_turn: bool) -> None:
        """Set whether the limits of a turn apply from now on. Not for ``TURN``, which all requests share."""
        assert self is not TURN
        self.in_turn = in_turn
        self.header_bytes = TURN_HEADER_BYTES if in_turn else NO_LIMIT

    def decompress(self, section: Buffer, codec: int, max_bytes: int, count: int) -> Buffer:
        """Decompress the records section of a magic 2 batch with ``count`` records by its header, to at most
        ``max_bytes``.

        Raises what ``tidelog.protocol.record.compression.decompress`` raises, TooMuchForTurnError.
        """
        plain_bytes, compressed_records, rebuilt_records = self.left
        if count > compressed_records:
            raise MessageTooLargeError(
                f"The compressed batches of a request hold over {MAX_COMPRESSED_RECORDS} records"
            )
        limit = min(max_bytes, plain_bytes)
        if self.in_turn and limit > TURN_PLAIN_BYTES:
            if len(section) > TURN_PACKED_BYTES:
                raise TooMuchForTurnError
            try:
                plain = decompress(section, codec, TURN_PLAIN_BYTES)
            except MessageTooLargeError:
                raise TooMuchForTurnError from None
        else:
            plain = decompress(section, codec, limit)
        # Counted only now: after TooMuchForTurnError a thread decompresses again.
        self.left = plain_bytes - len(plain), compressed_records - count, rebuilt_records
        return plain

    def give_back(self, size: int, count: int) -> None:
        """Give back ``size`` bytes with ``count`` records of :meth:`decompress`: another check decompresses them
        again."""
        self._spend(-size, -count, 0)

    def plain_limit(self, max_bytes: int, turn_bytes: int) -> int:
        """Return the bytes a batch may decompress to, when its topic allows ``max_bytes`` and a turn ``turn_bytes``."""
        limit = min(max_bytes, self.left[0])
        return min(limit, turn_bytes) if self.in_turn else limit

    def ensure_not_turn_limit(self, max_bytes: int, turn_bytes: int) -> None:
        """Raise TooMuchForTurnError if only the limit of a turn made :meth:`plain_limit` too low, so that a thread may
        decompress the batch."""
        if self.in_turn and turn_bytes < min(max_bytes, self.left[0]):
            raise TooMuchForTurnError

    def spend_plain_bytes(self, size: int) -> None:
        """Count bytes that were decompressed without :meth:`decompress`."""
        self._spend(size, 0, 0)

    def _spend(self, size: int, compressed: int, rebuilt: int) -> None:
        plain_bytes, compressed_records, rebuilt_records = self.left
        self.left = plain_bytes - size, compressed_records - compressed, rebuilt_records - rebuilt

    @property
    def rebuilt_records(self) -> int:
        """Number of records that may still be rebuilt."""
        return self.left[2]

    def rebuild_old(self, count: int) -> None:
        """Count ``count`` messages of an old set that are rebuilt; within a turn their bytes are limited, not their
        number. Raises MessageTooLargeError."""
        self.ensure_rebuildable(count)
        self._spend(0, 0, count)

    def rebuild(self, count: int) -> None:
        """Count ``count`` records that are rebuilt or checked one by one. Raises MessageTooLargeError,
        TooMuchForTurnError."""
        if self.in_turn and count > TURN_REBUILT_RECORDS:
            raise TooMuchForTurnError
        self.rebuild_old(count)

    def ensure_rebuildable(self, count: int) -> None:
        """Raise MessageTooLargeError if the request may not rebuild ``count`` more records."""
        if count > self.left[2]:
            raise MessageTooLargeError(
                f"A request has over {MAX_REBUILT_RECORDS} records that have to be rebuilt or checked one by one"
            )

    def ensure_for_turn(self, amount: int, turn_amount: int) -> None:
        """Raise TooMuchForTurnError if the limits of a turn apply and ``amount`` is above ``turn_amount``."""
        if self.in_turn and amount > turn_amount:
            raise TooMuchForTurnError


def one_batch_budget() -> WorkBudget:
    """Build a budget for a request of one batch, which begins in a turn and may go on in a thread. The topic's limits
    bound the batch's bytes, so in a thread only the number of rebuilt records is limited.
    """
    return WorkBudget(in_turn=True, plain_bytes=NO_LIMIT, compressed_records=NO_LIMIT)


TURN = WorkBudget(in_turn=True, plain_bytes=NO_LIMIT, compressed_records=NO_LIMIT, rebuilt_records=NO_LIMIT)
"""Budget of a request of one batch that is appended in one turn: only the limits of a turn apply. It is shared, so its
counts mean nothing; loop thread only.
"""
NO_BUDGET = WorkBudget(in_turn=False, plain_bytes=NO_LIMIT, compressed_records=NO_LIMIT, rebuilt_records=NO_LIMIT)
"""Budget of records that the broker itself writes, without limits. It is shared by all threads, so its counts mean
nothing."""
