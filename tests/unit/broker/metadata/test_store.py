from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

import tidelog.broker.metadata.store as module
from tidelog.broker.metadata.store import (
    CHECKPOINT_BYTES,
    CompactedRevisionError,
    Compare,
    KeyValue,
    MetadataStoreError,
    Put,
    SqliteMetadataStore,
    WatchEvent,
    prefix_end,
)
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError, code_for_exception


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.sqlite")


@pytest.fixture
def store(path: str, time: ManualTime) -> SqliteMetadataStore:
    return SqliteMetadataStore(path, time)


def test_an_empty_store_has_nothing(store: SqliteMetadataStore) -> None:
    assert store.get("/a") is None
    assert store.list("/") == []
    assert store.revision == 0


def test_put_and_get(store: SqliteMetadataStore) -> None:
    assert store.txn([], [Put("/a", b"1")], []) == 1
    assert store.get("/a") == KeyValue("/a", b"1", 1)


def test_list_is_ordered_and_keeps_to_its_prefix(store: SqliteMetadataStore) -> None:
    store.txn([], [Put("/t/b", b"2"), Put("/t/a", b"1"), Put("/u", b"3"), Put("/t", b"0")], [])
    assert [entry.key for entry in store.list("/t/")] == ["/t/a", "/t/b"]


def test_a_transaction_has_one_revision(store: SqliteMetadataStore) -> None:
    store.txn([], [Put("/a", b"1")], [])
    store.txn([], [Put("/b", b"1"), Put("/c", b"1")], ["/a"])
    assert [entry.mod_revision for entry in store.list("/")] == [2, 2]


def test_a_deleted_key_is_gone(store: SqliteMetadataStore) -> None:
    store.txn([], [Put("/a", b"1")], [])
    store.txn([], [], ["/a"])
    assert store.get("/a") is None
    assert store.list("/") == []


@pytest.mark.parametrize(("revision", "applied"), [(1, True), (0, False), (2, False)])
def test_a_failed_comparison_changes_nothing(store: SqliteMetadataStore, revision: int, applied: bool) -> None:
    store.txn([], [Put("/a", b"1")], [])
    outcome = store.txn([Compare("/a", revision)], [Put("/a", b"2"), Put("/b", b"2")], [])
    assert (outcome is not None) is applied
    assert store.get("/a") == (KeyValue("/a", b"2", 2) if applied else KeyValue("/a", b"1", 1))
    assert (store.get("/b") is not None) is applied


def test_comparing_with_zero_means_the_key_does_not_exist(store: SqliteMetadataStore) -> None:
    assert store.txn([Compare("/a", 0)], [Put("/a", b"1")], []) == 1
    assert store.txn([Compare("/a", 0)], [Put("/a", b"2")], []) is None
    store.txn([], [], ["/a"])
    assert store.txn([Compare("/a", 0)], [Put("/a", b"3")], []) == 3


def test_values_are_kept_over_a_restart(store: SqliteMetadataStore, path: str, time: ManualTime) -> None:
    store.txn([], [Put("/a", b"1")], [])
    store.close()
    again = SqliteMetadataStore(path, time)
    assert again.get("/a") == KeyValue("/a", b"1", 1)
    assert again.revision == 1


def test_commits_are_synced_to_disk(store: SqliteMetadataStore) -> None:
    connection = store._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    # NORMAL: the store syncs itself, see below.
    assert connection.execute("PRAGMA synchronous").fetchone() == (1,)
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is synced from now on."""
    names: list[str] = []
    sync = os.fdatasync

    def note(descriptor: int) -> None:
        sync(descriptor)
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fdatasync", note)
    return names


def test_a_transaction_is_synced_before_it_returns(store: SqliteMetadataStore, path: str, synced: list[str]) -> None:
    store.txn([], [Put("/a", b"1")], [])
    assert synced == ["metadata.sqlite-wal", os.path.basename(os.path.dirname(path))]
    store.txn([], [Put("/a", b"2")], [])
    assert synced[2:] == ["metadata.sqlite-wal"]


def test_a_failed_comparison_syncs_nothing(store: SqliteMetadataStore, synced: list[str]) -> None:
    assert store.txn([Compare("/a", 3)], [Put("/a", b"1")], []) is None
    assert synced == []


def test_one_sync_serves_many(store: SqliteMetadataStore, synced: list[str]) -> None:
    for number in range(9):
        store.txn([], [Put(f"/{number}", b"1")], [], sync=False)
    assert synced == []
    thread = threading.Thread(target=store.sync)
    thread.start()
    thread.join()
    assert synced[0] == "metadata.sqlite-wal"
    assert len(store.list("/")) == 9


def test_a_long_wal_is_written_back_at_a_sync(store: SqliteMetadataStore, path: str) -> None:
    wal = path + "-wal"
    for number in range(40):
        store.txn([], [Put(f"/{number}", bytes(200_000))], [], sync=False)
    assert os.path.getsize(wal) > CHECKPOINT_BYTES > os.path.getsize(path)
    store.sync()
    assert os.path.getsize(path) > CHECKPOINT_BYTES
    for number in range(20):
        store.txn([], [Put(f"/{number}", bytes(100_000))], [])
    assert os.path.getsize(wal) < CHECKPOINT_BYTES, "it starts over"
    assert len(store.list("/")) == 40


def test_a_wal_that_begins_anew_is_not_written_back_at_each_sync(
    store: SqliteMetadataStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints: list[SqliteMetadataStore] = []
    checkpoint = SqliteMetadataStore._checkpoint

    def counted(store: SqliteMetadataStore) -> None:
        checkpoints.append(store)
        checkpoint(store)

    monkeypatch.setattr(SqliteMetadataStore, "_checkpoint", counted)
    for number in range(50):
        store.txn([], [Put(f"/{number}", bytes(200_000))], [])
    assert 1 <= len(checkpoints) <= 3


def test_after_a_failed_sync_nothing_more_is_taken(store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.txn([], [Put("/a", b"1")], [])

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(MetadataStoreError, match="Input/output error"):
            store.txn([], [Put("/a", b"2")], [])
    with pytest.raises(MetadataStoreError, match="Input/output error"):
        store.txn([], [Put("/a", b"3")], [])
    with pytest.raises(MetadataStoreError, match="Input/output error"):
        store.sync()


def test_an_uncommitted_transaction_is_not_seen(path: str, store: SqliteMetadataStore, time: ManualTime) -> None:
    other = SqliteMetadataStore(path, time)
    store._connection.execute("BEGIN IMMEDIATE")
    store._connection.execute("INSERT INTO kv VALUES ('/a', x'01', 1, 0)")
    assert other.get("/a") is None
    store._connection.execute("ROLLBACK")


def test_two_stores_on_one_file_see_each_other(path: str, store: SqliteMetadataStore, time: ManualTime) -> None:
    other = SqliteMetadataStore(path, time)
    store.txn([], [Put("/a", b"1")], [])
    assert other.txn([Compare("/a", 1)], [Put("/a", b"2")], []) == 2
    assert store.get("/a") == KeyValue("/a", b"2", 2)


def test_watch_gives_changes_after_its_revision(store: SqliteMetadataStore) -> None:
    store.txn([], [Put("/t/a", b"1")], [])
    watch = store.watch("/t/", 1)
    assert watch.poll() == []
    store.txn([], [Put("/t/b", b"1"), Put("/u", b"1")], [])
    store.txn([], [], ["/t/a"])
    assert watch.poll() == [WatchEvent("/t/b", b"1", 2), WatchEvent("/t/a", None, 3)]
    assert watch.poll() == []


def test_watch_from_the_beginning_sees_all(store: SqliteMetadataStore) -> None:
    store.txn([], [Put("/t/a", b"1")], [])
    assert store.watch("/t/", 0).poll() == [WatchEvent("/t/a", b"1", 1)]


def test_watch_from_before_the_kept_deletions_is_refused(
    store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOMBSTONES_KEPT", 1)
    store.txn([], [Put("/a", b"1"), Put("/b", b"1")], [])
    watch = store.watch("/", 1)
    store.txn([], [], ["/a"])
    store.txn([], [], ["/b"])
    store.txn([], [Put("/c", b"1")], [])
    with pytest.raises(CompactedRevisionError):
        watch.poll()
    assert store.watch("/", store.revision).poll() == []


def test_a_key_goes_with_its_lease(store: SqliteMetadataStore, time: ManualTime) -> None:
    lease = store.lease(1_000)
    store.txn([], [Put("/member", b"1", lease)], [])
    watch = store.watch("/", store.revision)
    time.advance(999)
    assert store.get("/member") is not None
    time.advance(1)
    assert store.get("/member") is None
    assert watch.poll() == [WatchEvent("/member", None, 2)]


def test_keepalive_starts_the_time_again(store: SqliteMetadataStore, time: ManualTime) -> None:
    lease = store.lease(1_000)
    store.txn([], [Put("/member", b"1", lease)], [])
    time.advance(900)
    assert store.keepalive(lease)
    time.advance(900)
    assert store.get("/member") is not None


def test_an_expired_lease_cannot_be_kept_alive_or_used(store: SqliteMetadataStore, time: ManualTime) -> None:
    lease = store.lease(1_000)
    time.advance(1_000)
    assert not store.keepalive(lease)
    assert store.txn([], [Put("/member", b"1", lease)], []) is None
    assert store.list("/") == []


def test_a_key_put_again_without_the_lease_stays(store: SqliteMetadataStore, time: ManualTime) -> None:
    store.txn([], [Put("/a", b"1", store.lease(1_000))], [])
    store.txn([], [Put("/a", b"2")], [])
    time.advance(2_000)
    assert store.get("/a") == KeyValue("/a", b"2", 2)


def test_a_file_that_is_no_store_is_refused(tmp_path: Path, time: ManualTime) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(MetadataStoreError, match=r"metadata\.sqlite"):
        SqliteMetadataStore(str(path), time)


def test_a_store_of_a_later_format_is_refused(store: SqliteMetadataStore, path: str, time: ManualTime) -> None:
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(MetadataStoreError, match="format 99"):
        SqliteMetadataStore(path, time)


def test_an_error_while_writing_changes_nothing(store: SqliteMetadataStore) -> None:
    def failing() -> list[Put]:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        store.txn([], (put for put in failing()), [])
    assert store.txn([], [Put("/a", b"1")], []) == 1


def test_a_store_that_cannot_be_written_says_so(store: SqliteMetadataStore, path: str, time: ManualTime) -> None:
    other = SqliteMetadataStore(path, time)
    other._connection.execute("PRAGMA busy_timeout = 1")
    store._connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(MetadataStoreError, match="locked"):
        other.txn([], [Put("/a", b"1")], [])
    store._connection.execute("ROLLBACK")


def limit_pages(store: SqliteMetadataStore) -> None:
    """Let the file grow no further: SQLite answers as on a full disk."""
    store._connection.execute("PRAGMA max_page_count = 1")


def test_a_full_store_gets_room_once_and_goes_on(path: str, time: ManualTime) -> None:
    calls: list[int] = []

    def make_room() -> bool:
        calls.append(1)
        full._connection.execute("PRAGMA max_page_count = 1000000")
        return True

    full = SqliteMetadataStore(path, time, make_room)
    limit_pages(full)
    assert full.txn([], [Put("/a", bytes(100_000))], []) == 1
    assert calls == [1]
    assert full.list("/") == [KeyValue("/a", bytes(100_000), 1)]
    full.close()


def test_a_full_store_without_room_changes_nothing_and_takes_what_comes_later(path: str, time: ManualTime) -> None:
    full = SqliteMetadataStore(path, time)
    limit_pages(full)
    with pytest.raises(MetadataStoreError, match="full"):
        full.txn([], [Put("/a", bytes(100_000))], [])
    assert full.list("/") == []
    full._connection.execute("PRAGMA max_page_count = 1000000")
    assert full.txn([], [Put("/a", b"1")], []) == 1
    full.close()


def test_prefix_end_is_the_next_text() -> None:
    assert prefix_end("/topics/") == "/topics0"


def test_a_store_that_cannot_be_written_is_a_storage_error_to_clients() -> None:
    assert code_for_exception(MetadataStoreError("database or disk is full")) == KafkaStorageError.code
