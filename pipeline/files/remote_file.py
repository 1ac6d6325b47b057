"""Object of a store that is read like a file by position: in blocks for look-ups, ahead of the reader for long reads.

    ``expect(a, b)``   bytes a to b in pieces of PIECE_BYTES, READERS at once ahead of the reader, nothing beyond b
    a look-up          another read of up to LOOKUP_BYTES: aligned blocks of that size, cached per process; a plan's
                       binary searches need few of them
    a longer read      exactly its bytes, in one request

So a task fetches its slice once, and no copy is written to disk: the decoder calls ``expect`` and ``read_into`` for
objects as for local files.

An object is replaced or deleted as a whole, and a later request then returns bytes of the new object. So the entity tag
(ETag) is kept when an object is opened, and after its last read a reader asks whether it is still the same
(``was_replaced``). A request that fails because the object was deleted raises ObjectGoneError.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.errors import ObjectGoneError, RemoteError
from tidelog.pipeline.files.remote import forget_listing, locate, reason, remote_errors

if TYPE_CHECKING:
    from tidelog.pipeline.files.read_count import ReadCount

#: Unit of look-ups: a binary search in an index of 2 MB reads four of its sixteen blocks, with a request for each.
LOOKUP_BYTES = 128 * 1024
#: Blocks of look-ups that a process keeps: 32 MiB in all.
KEPT_BLOCKS = 256
#: Guards each ``ReadCount``, to which several threads add.
_COUNTING = threading.Lock()
PIECE_BYTES = 4 * 1024 * 1024
#: Requests at once: a store limits the speed of each connection.
READERS = 4


class RemoteFile:
    """An open object of a store; its user closes it. One thread."""

    def __init__(self, path: str, count: ReadCount) -> None:
        """Raises FileNotFoundError, OptionError, RemoteError."""
        self.path = path
        self._count = count
        try:
            self._file, self.identity = _open_object(path)
        except FileNotFoundError:
            forget_listing(path.rpartition("/")[0])
            raise
        self.size: int = self._file.size()
        self.ctime_ns = 0
        self._ahead: _ReadAhead | None = None

    def close(self) -> None:
        """Close the object, after waiting for requests under way."""
        if self._ahead is not None:
            self._ahead.close()
        self._file.close()

    def expect(self, start: int, end: int) -> None:
        """Fetch bytes ``start`` to ``end`` ahead of the reader, who will read them in order."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = _ReadAhead(self._fetch, start, min(end, self.size))

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill ``target`` from byte ``position`` and return the bytes read, fewer at the end only. Raises RemoteError,
        ObjectGoneError."""
        size = min(len(target), self.size - position)
        done = 0
        while done < size:
            data = self._bytes_at(position + done, size - done)
            target[done : done + len(data)] = data
            done += len(data)
        return done

    def was_replaced(self) -> bool:
        """Return whether another object has this one's name now; False if this one was only deleted.

        Raises RemoteError.
        """
        try:
            return self._identity_now() != self.identity
        except ObjectGoneError:
            return False

    def _bytes_at(self, position: int, size: int) -> memoryview:
        """Read from ``position`` on, at most ``size`` bytes; none while the pieces before ``position`` are skipped."""
        if self._ahead is not None:
            data = self._ahead.bytes_at(position, size)
            if data is not None:
                return data
        if size > LOOKUP_BYTES:
            return memoryview(self._fetch(position, size))
        start = position // LOOKUP_BYTES * LOOKUP_BYTES
        block = _BLOCKS.get((self.path, self.identity, start), lambda: self._fetch(start, LOOKUP_BYTES))
        return memoryview(block)[position - start : position - start + size]

    def _fetch(self, position: int, size: int) -> bytes:
        """Fetch all of the bytes, fewer at the end of the object only. Any thread."""
        wanted = min(size, self.size - position)
        try:
            data: bytes = self._file.read_at(wanted, position)
        except OSError as error:
            self._identity_now()  # raises ObjectGoneError if that is the reason
            raise RemoteError(f"{self.path} cannot be read at byte {position}: {reason(error)}") from error
        if len(data) < wanted:
            raise RemoteError(f"{self.path} returned {len(data)} bytes from byte {position}: expected {wanted}")
        with _COUNTING:
            self._count.add(len(data))
        return data

    def _identity_now(self) -> int:
        try:
            file, identity = _open_object(self.path)
        except FileNotFoundError:
            forget_listing(self.path.rpartition("/")[0])
            raise ObjectGoneError(f"{self.path} was deleted while it was read") from None
        file.close()
        return identity


def _open_object(path: str) -> tuple[Any, int]:
    """Open the object; return it and a number that identifies this version of it, never 0. Raises FileNotFoundError,
    OptionError, RemoteError.
    """
    file_system, key = locate(path)
    with remote_errors(path, "opened"):
        file = file_system.open_input_file(key)
        metadata = {str(name).lower(): value for name, value in (file.metadata() or {}).items()}
        tag = metadata.get("etag")
        if tag is None:
            info = file_system.get_file_info(key)
            tag = b"%d" % (info.mtime_ns or 0)
    digest = hashlib.blake2b(b"%d %s" % (file.size(), tag), digest_size=8).digest()
    return file, int.from_bytes(digest, "big") >> 1 | 1


class _ReadAhead:
    """Fetcher of a range, piece by piece, ahead of its reader. One reading thread."""

    def __init__(self, fetch: Callable[[int, int], bytes], start: int, end: int) -> None:
        self._fetch = fetch
        self._next = start
        self._end = end
        self._pieces: deque[tuple[int, int, Future[bytes]]] = deque()
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="read ahead")

    def bytes_at(self, position: int, size: int) -> memoryview | None:
        """Return up to ``size`` bytes from ``position``; None outside the range that is fetched ahead.

        After a jump ahead of all pieces under way it returns no bytes, and the next call goes on with later pieces.
        """
        while self._pieces and self._pieces[0][1] <= position:
            self._pieces.popleft()
        self._send()
        if not self._pieces or position < self._pieces[0][0]:
            return None
        start, end, piece = self._pieces[0]
        return memoryview(piece.result())[position - start : min(end, position + size) - start]

    def _send(self) -> None:
        while len(self._pieces) < READERS and self._next < self._end:
            end = min(self._next + PIECE_BYTES, self._end)
            self._pieces.append((self._next, end, self._threads.submit(self._fetch, self._next, end - self._next)))
            self._next = end

    def close(self) -> None:
        """Stop fetching, and wait for requests under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._pieces.clear()


class _Blocks:
    """Cache of the blocks that look-ups of this process read last. Any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: tuple[str, int, int], fetch: Callable[[], bytes]) -> bytes:
        """Return the block; ``fetch`` it if it is not in the cache."""
        with self._lock:
            known = self._kept.get(name)
            if known is not None:
                self._kept.move_to_end(name)
                return known
        block = fetch()
        with self._lock:
            self._kept[name] = block
            while len(self._kept) > KEPT_BLOCKS:
                self._kept.popitem(last=False)
        return block


_BLOCKS = _Blocks()
