"""The cluster's small facts (topics, ids, configs, quotas, producer-id blocks) as six calls, here over SQLite.

The calls are etcd's in shape, so that a cluster can keep the same keys in etcd: ``get``, ``list``, ``txn``, ``watch``,
``lease``, ``keepalive``. Keys are text such as ``/topics/orders``, values are bytes the store does not read.

Invariants
  * Every committed ``txn`` has one revision, greater than all before it; what it put and deleted carries it.
  * A ``txn`` is applied wholly or not at all, and is on disk before the call returns; with ``sync=False`` it is so
    after the next ``sync``, which any thread may call, or the next ``txn`` that syncs.
  * A deleted key stays as a row without a value, so that a watch started at an older revision still sees the deletion.
    The newest ``TOMBSTONES_KEPT`` are kept; who watches from before them is told so (``CompactedRevisionError``).
  * A key put under a lease goes when the lease has not been kept alive for its time; the next call that looks notices.

One connection, used by the thread that made it (the event loop). Another process may hold the same file open: SQLite's
own lock orders the writers, ``BUSY_TIMEOUT_S`` bounds the wait.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from tidelog.log.system.time import Time
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 5.0
TOMBSTONES_KEPT = 10_000
CHECKPOINT_BYTES = 4 * 1024 * 1024
"""A WAL of this size is written back at the next sync; SQLite's own default is about the same."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS kv (
  key TEXT PRIMARY KEY, value BLOB, mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS kv_by_revision ON kv (mod_revision);
CREATE INDEX IF NOT EXISTS kv_tombstones ON kv (mod_revision) WHERE value IS NULL;
CREATE TABLE IF NOT EXISTS leases (
  id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO state VALUES ('revision', 0), ('compacted', 0);
PRAGMA user_version = 1;
"""
_SCHEMA_VERSION = 1
_NO_ROOM = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_CANTOPEN,
    }
)
"""What SQLite may say on a full disk: the file itself, the WAL, or the shared index of the WAL has no room."""
_DELETE_KEY = "UPDATE kv SET value = NULL, lease = 0, mod_revision = ? WHERE key = ? AND value IS NOT NULL"
_CHANGES = """
SELECT key, value, mod_revision FROM kv WHERE mod_revision > ? AND key >= ? AND key < ? ORDER BY mod_revision, key
"""


class MetadataStoreError(KafkaStorageError):
    """The store cannot be opened or written: the message names the file and the reason."""


class CompactedRevisionError(MetadataStoreError):
    """A watch asked for events that are no longer kept; list the prefix again and watch from that revision."""


class KeyValue(NamedTuple):
    """One key as stored; ``mod_revision`` is the revision of the transaction that wrote it last."""

    key: str
    value: bytes
    mod_revision: int


class Put(NamedTuple):
    """Write ``value`` under ``key``; with a lease the key lives no longer than the lease."""

    key: str
    value: bytes
    lease: int = 0


class Compare(NamedTuple):
    """Holds when ``key`` was last written at ``mod_revision``; 0 means that the key does not exist."""

    key: str
    mod_revision: int


class WatchEvent(NamedTuple):
    """A change of one key; ``value`` is None when it was deleted."""

    key: str
    value: bytes | None
    mod_revision: int


class Watch(Protocol):
    """Changes below a prefix since the last ``poll``."""

    def poll(self) -> list[WatchEvent]:
        """The changes since the last call, oldest first; only the newest state of a key that changed twice.

        Raises CompactedRevisionError.
        """
        ...


class MetadataStore(Protocol):
    """Store of topics, configs, quotas and producer-id blocks."""

    def get(self, key: str) -> KeyValue | None:
        """The key's present value, or None."""
        ...

    def list(self, prefix: str) -> list[KeyValue]:
        """All keys that start with ``prefix``, in key order."""
        ...

    def txn(
        self, compare: Iterable[Compare], puts: Iterable[Put], deletes: Iterable[str], *, sync: bool = True
    ) -> int | None:
        """Apply all ``puts`` and ``deletes`` if every ``compare`` holds; without ``sync`` not durable until ``sync()``.

        Returns the new revision, or None when a comparison failed and nothing was changed.
        """
        ...

    def sync(self) -> None:
        """Make everything durable that was committed before the call. Any thread. Raises MetadataStoreError."""
        ...

    def watch(self, prefix: str, revision: int) -> Watch:
        """Follow the changes below ``prefix`` made after ``revision``."""
        ...

    def lease(self, ttl_ms: int) -> int:
        """A new lease that lives for ``ttl_ms`` after the last ``keepalive``; ids are positive."""
        ...

    def keepalive(self, lease: int) -> bool:
        """Start the lease's time again; False when it has expired already."""
        ...

    @property
    def revision(self) -> int:
        """The revision of the newest transaction, 0 in an empty store."""
        ...

    def close(self) -> None:
        """Let go of the store; it is not usable afterwards."""
        ...


class SqliteMetadataStore:
    """The embedded store: one SQLite file in the data directory.

    SQLite runs with ``synchronous=NORMAL``, where a commit is in the WAL but not synced; ``sync`` does what FULL would
    do at each commit, when and in which thread the caller wants: fdatasync of the WAL, and once of the directory that
    got its name. Checkpoints, which sync two files, run there too, once the WAL is CHECKPOINT_BYTES long. After a
    failed sync the disk's content is unknown, so the store takes and syncs nothing more (F9).

    On a full disk ``make_room`` is called once and what failed is done again. Where that gives no room for the shared
    index of the WAL, the store is opened for this process alone, which needs none; it can be read then.
    """

    __slots__ = (
        "_connection", "_failure", "_is_exclusive", "_is_named", "_make_room", "_path", "_sync_lock", "_time",
    )  # fmt: skip

    def __init__(self, path: str, time: Time, make_room: Callable[[], bool] = lambda: False) -> None:
        """Open or create the file. ``make_room`` frees room on its disk, false when it cannot; any thread calls it.

        Raises MetadataStoreError when it is no store of ours or cannot be written.
        """
        self._path = path
        self._time = time
        self._make_room = make_room
        self._is_exclusive = False
        self._sync_lock = threading.Lock()
        self._is_named = False
        self._failure: OSError | sqlite3.Error | None = None
        _protect(path)
        try:
            self._open()
        except sqlite3.Error as error:
            raise MetadataStoreError(f"cannot open metadata store {path}: {error}") from error

    def _open(self) -> None:
        """Open the file, with more room or for this process alone where the disk is full. Raises sqlite3.Error."""
        try:
            self._connect()
        except sqlite3.Error as error:
            if not (_may_lack_room(error) and os.path.exists(self._path)):
                raise
            if self._make_room():
                with contextlib.suppress(sqlite3.Error):
                    self._connect()
                    return
            self._is_exclusive = True
            self._connect()

    def _connect(self) -> None:
        self._connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()  # what is refused is not held open
            raise

    def _prepare(self) -> None:
        if self._is_exclusive:
            logger.warning("%s is opened for this process alone: its disk is full", self._path)
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _SCHEMA_VERSION:
            raise MetadataStoreError(
                f"metadata store {self._path} has format {version}, this Tidelog reads up to {_SCHEMA_VERSION}"
            )
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        # A WAL that begins again is cut to what is in it: its size is what tells ``sync`` when to write it back.
        self._connection.execute("PRAGMA journal_size_limit = 0")
        if version < _SCHEMA_VERSION:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript("BEGIN IMMEDIATE;" + _SCHEMA + "COMMIT;")

    def close(self) -> None:
        """Write the WAL back and close the file; the store is not usable afterwards."""
        self._connection.close()

    @property
    def revision(self) -> int:
        """The revision of the newest transaction, 0 in an empty store."""
        return self._state("revision")

    def get(self, key: str) -> KeyValue | None:
        self._expire_leases()
        row = self._connection.execute(
            "SELECT value, mod_revision FROM kv WHERE key = ? AND value IS NOT NULL", (key,)
        ).fetchone()
        return None if row is None else KeyValue(key, *row)

    def list(self, prefix: str) -> list[KeyValue]:
        self._expire_leases()
        rows = self._connection.execute(
            "SELECT key, value, mod_revision FROM kv WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key",
            (prefix, prefix_end(prefix)),
        )
        return [KeyValue(*row) for row in rows]

    def txn(
        self, compare: Iterable[Compare], puts: Iterable[Put], deletes: Iterable[str], *, sync: bool = True
    ) -> int | None:
        """Run one transaction: see MetadataStore.txn.

        Raises MetadataStoreError when the file cannot be written; nothing is changed then.
        """
        self._refuse_after_failure()
        self._expire_leases()
        changes = tuple(compare), tuple(puts), tuple(deletes)
        try:
            revision = self._commit(*changes)
        except sqlite3.Error as error:
            if not (_may_lack_room(error) and self._make_room()):
                raise _unwritable(self._path, error) from error
            try:
                revision = self._commit(*changes)
            except sqlite3.Error as again:
                raise _unwritable(self._path, again) from again
        if sync and revision is not None:
            self.sync()
        return revision

    def _commit(self, compare: Iterable[Compare], puts: Iterable[Put], deletes: Iterable[str]) -> int | None:
        """Apply all in one transaction; None when a comparison failed. Raises sqlite3.Error: nothing is changed."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            revision = self._apply(compare, puts, deletes)
            self._connection.execute("ROLLBACK" if revision is None else "COMMIT")
        finally:
            if self._connection.in_transaction:  # a full disk may have ended it already
                self._connection.execute("ROLLBACK")
        return revision

    def sync(self) -> None:
        with self._sync_lock:
            self._refuse_after_failure()
            try:
                size = sync_file(self._path + "-wal")
                if size and not self._is_named:
                    sync_file(os.path.dirname(self._path) or ".")
                    self._is_named = True
                if size >= CHECKPOINT_BYTES and not self._is_exclusive:
                    self._checkpoint()
            except (OSError, sqlite3.Error) as error:
                self._failure = error
                self._refuse_after_failure()

    def _checkpoint(self) -> None:
        """Write the WAL back into the file, through a connection of this thread's own; readers and writers go on.

        A full disk leaves the WAL as it is, and complete: a later sync writes it back. Raises sqlite3.Error.
        """
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S)) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            if not _may_lack_room(error):
                raise
            logger.warning("metadata store %s is written back later: %s", self._path, error)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise MetadataStoreError(f"cannot sync metadata store {self._path}: {self._failure}")

    def _apply(self, compare: Iterable[Compare], puts: Iterable[Put], deletes: Iterable[str]) -> int | None:
        execute = self._connection.execute
        for condition in compare:
            row = execute(
                "SELECT mod_revision FROM kv WHERE key = ? AND value IS NOT NULL", (condition.key,)
            ).fetchone()
            if (0 if row is None else row[0]) != condition.mod_revision:
                return None
        revision = self._state("revision") + 1
        execute("UPDATE state SET value = ? WHERE name = 'revision'", (revision,))
        for put in puts:
            if put.lease and not _lease_exists(self._connection, put.lease):
                return None
            execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?, ?)", (put.key, put.value, revision, put.lease))
        for key in deletes:
            execute(_DELETE_KEY, (revision, key))
        self._compact()
        return revision

    def watch(self, prefix: str, revision: int) -> SqliteWatch:
        return SqliteWatch(self, prefix, revision)

    def changes(self, prefix: str, revision: int) -> Sequence[WatchEvent]:
        """The changes below ``prefix`` after ``revision``, oldest first.

        Raises CompactedRevisionError.
        """
        self._expire_leases()
        compacted = self._state("compacted")
        if revision < compacted:
            raise CompactedRevisionError(f"revision {revision} is older than {compacted}, the oldest kept")
        rows = self._connection.execute(_CHANGES, (revision, prefix, prefix_end(prefix)))
        return [WatchEvent(*row) for row in rows]

    def lease(self, ttl_ms: int) -> int:
        expires = self._time.milliseconds() + ttl_ms
        cursor = self._connection.execute("INSERT INTO leases (ttl_ms, expires_ms) VALUES (?, ?)", (ttl_ms, expires))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def keepalive(self, lease: int) -> bool:
        now = self._time.milliseconds()
        cursor = self._connection.execute(
            "UPDATE leases SET expires_ms = ttl_ms + ? WHERE id = ? AND expires_ms > ?", (now, lease, now)
        )
        return cursor.rowcount == 1

    def _expire_leases(self) -> None:
        """Delete what hung on leases that ran out, as one transaction with its own revision."""
        now = self._time.milliseconds()
        expired = [row[0] for row in self._connection.execute("SELECT id FROM leases WHERE expires_ms <= ?", (now,))]
        if not expired:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        revision = self._state("revision") + 1
        self._connection.execute("UPDATE state SET value = ? WHERE name = 'revision'", (revision,))
        for lease in expired:
            self._connection.execute(
                "UPDATE kv SET value = NULL, lease = 0, mod_revision = ? WHERE lease = ?", (revision, lease)
            )
            self._connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
        self._connection.execute("COMMIT")

    def _state(self, name: str) -> int:
        value: int = self._connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()[0]
        return value

    def _compact(self) -> None:
        """Forget the oldest deletions once more than TOMBSTONES_KEPT are kept."""
        row = self._connection.execute(
            "SELECT mod_revision FROM kv WHERE value IS NULL ORDER BY mod_revision DESC LIMIT 1 OFFSET ?",
            (TOMBSTONES_KEPT,),
        ).fetchone()
        if row is not None:
            self._connection.execute("DELETE FROM kv WHERE value IS NULL AND mod_revision <= ?", row)
            self._connection.execute("UPDATE state SET value = ? WHERE name = 'compacted'", row)


def _protect(path: str) -> None:
    """Let only the owner read the store: it holds SCRAM keys. SQLite gives its other files the same mode.

    A file that exists is not opened here: closing it would give up the locks that SQLite holds in this process.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(OSError):  # another's file, or none
            if stat.S_IMODE(os.stat(name).st_mode) & 0o077:
                os.chmod(name, 0o600)


def _unwritable(path: str, error: sqlite3.Error) -> MetadataStoreError:
    return MetadataStoreError(f"cannot write metadata store {path}: {error}")


def _lease_exists(connection: sqlite3.Connection, lease: int) -> bool:
    return connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone() is not None


def _may_lack_room(error: sqlite3.Error) -> bool:
    """Return whether a full disk may be the reason."""
    return getattr(error, "sqlite_errorcode", None) in _NO_ROOM


class SqliteWatch:
    """A position in the store's history; ``poll`` moves it forward."""

    __slots__ = ("_prefix", "_revision", "_store")

    def __init__(self, store: SqliteMetadataStore, prefix: str, revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._revision = revision

    def poll(self) -> list[WatchEvent]:
        newest = self._store.revision
        events = list(self._store.changes(self._prefix, self._revision))
        self._revision = max(newest, self._revision, events[-1].mod_revision if events else 0)
        return events


def sync_file(path: str) -> int:
    """Make a file's data, or a directory's names, durable; returns its size. A file that is not there has nothing to
    sync: size 0. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        os.fdatasync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def prefix_end(prefix: str) -> str:
    """The smallest text greater than everything that starts with ``prefix``; ``prefix`` must not be empty."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
