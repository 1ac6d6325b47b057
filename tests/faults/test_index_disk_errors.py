"""One call of the file system for a key or tag index fails, each in turn: EIO or ENOSPC at each call of indexing,
checkpoints, trims, look-ups, rebuilds and opening.

A look-up gives all records that are indexed, or an error; nothing that does not match. The log goes on, and so does the
index: by itself, or rebuilt. ``TIDELOG_ALL_DISK_ERRORS`` tries every call, not some.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.finding import (
    CONFIG,
    QUERIES,
    catch_up,
    check_answers,
    fill,
    indexed_bench,
    indexer_of,
    use_reference,
)
from tests.support.logs import NOW_MS, LogBench, append
from tests.unit.log.find.test_filtering import read_on
from tidelog.log.config import LogConfig
from tidelog.log.find.consume_queue import ConsumeQueueFile
from tidelog.log.find.filtering import MatchReader
from tidelog.log.find.index_checkpoint import remove_checkpoints_beyond
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.lookup import Query, find_newest
from tidelog.log.find.rows import Rows
from tidelog.log.follower.append import append_as_follower
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import Record, build_batch

CALLS = (
    "open", "rename", "unlink", "scandir", "pread", "preadv", "pwrite", "ftruncate", "posix_fallocate", "fdatasync",
    "fsync", "fstat",
)  # fmt: skip
ALL = bool(os.environ.get("TIDELOG_ALL_DISK_ERRORS"))
SEED = os.environ.get("TIDELOG_DISK_SEED", "1")
SAMPLE = 5
ATTEMPTS = 3
SMALL = {"index.keys.entries": 40, "index.tag.entries": 30}
START = 20
"""Where retention lets the log begin."""


class Disk:
    """The operating system's calls on index files, one of which may fail; a write that fails is done in part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._fail_at = self._code = 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def arm(self, fail_at: int, code: int) -> None:
        self.calls, self._fail_at, self._code = 0, fail_at, code

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *arguments: Any, **named: Any) -> Any:
            if is_of_an_index(target):
                self.calls += 1
                if self.calls == self._fail_at:
                    if name == "pwrite":
                        real(target, arguments[0][: len(arguments[0]) // 2], arguments[1])
                    raise OSError(self._code, "injected")
            return real(target, *arguments, **named)

        return call


def is_of_an_index(target: int | str) -> bool:
    path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
    return "/keys" in path or "/tags" in path


class Trial:
    """A log, its indices, and what the broker's thread does for them."""

    def __init__(self, directory: Path) -> None:
        self._bench: LogBench = indexed_bench(str(directory), **SMALL)
        self._chance = random.Random(5)
        self.log: UnifiedLog = self._bench.open()
        self.records: list[Record] = fill(self.log, self._chance, 12)
        self.indexer = indexer_of(self.log)
        self.indexer.checkpoint()

    def steps(self) -> Iterator[Callable[[], object]]:
        self.records += fill(self.log, self._chance, 12)
        yield lambda: catch_up(self.indexer)
        yield self.indexer.checkpoint
        self.log.maybe_increment_log_start_offset(START)
        yield self.indexer.trim
        yield self.look_up
        yield self.indexer.rebuild
        yield lambda: catch_up(self.indexer)
        yield self.indexer.checkpoint
        yield self.open
        self.records += fill(self.log, self._chance, 3)
        yield lambda: catch_up(self.indexer)

    def open(self) -> None:
        indexer = LogIndexer(self.log)
        indexer.configure()
        self.indexer = indexer

    def attempt(self, step: Callable[[], object]) -> None:
        """Do a step as the broker's indexer thread does, which repeats it later, and rebuilds a damaged index."""
        for _ in range(ATTEMPTS):
            try:
                return void(step)
            except IndexDamagedError:
                step = self.indexer.rebuild
            except KafkaStorageError:
                continue
        raise AssertionError("one call failed, and the work does not go on")

    def run(self) -> None:
        for step in self.steps():
            self.attempt(step)
            self.attempt(self.look_up)
        self.attempt(lambda: catch_up(self.indexer))
        assert self.log.is_serving

    def look_up(self) -> None:
        """Compare look-ups with the records. Raises IndexDamagedError, KafkaStorageError."""
        start = self.log.log_start_offset
        for query in QUERIES:
            if (query.key is None and query.tag is None) or (query.key or query.tag) == b"missing":
                continue
            indexed = self.indexer.next_offset
            found = {record.offset for record in find_newest(self.log, self.indexer, query)}
            wanted = {record.offset for record in self.records if record.offset >= start and query.matches(record)}
            assert found <= wanted, query
            assert {offset for offset in wanted if offset < indexed} <= found, query

    def check(self) -> None:
        kept = [record for record in self.records if record.offset >= START]
        check_answers(self.log, self.indexer, kept)
        self.log.flush()
        self.log.close()
        log = self._bench.open(log_start_offset=START)
        log.update_high_watermark(log.log_end_offset)
        check_answers(log, indexer_of(log), kept)


def void(step: Callable[[], object]) -> None:
    step()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_an_error_at_every_call_for_an_index(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_reference(monkeypatch)
    disk = Disk(monkeypatch)
    undisturbed = Trial(tmp_path / "undisturbed")
    disk.arm(0, 0)
    undisturbed.run()
    calls = range(1, disk.calls + 1)
    undisturbed.check()
    for at in calls if ALL else random.Random(f"{SEED} {code}").sample(calls, SAMPLE):
        trial = Trial(tmp_path / str(at))
        disk.arm(at, code)
        trial.run()
        disk.arm(0, 0)
        trial.check()


def test_an_index_whose_sync_failed_is_rebuilt_and_not_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped the written pages, and a second sync would report success."""
    trial = Trial(tmp_path)
    trial.records += fill(trial.log, random.Random(7), 20)
    catch_up(trial.indexer)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(IndexDamagedError):
            trial.indexer.checkpoint()
    before = {path.stat().st_ino for path in Path(trial.log.directory).glob("*s/0*")}
    trial.indexer.rebuild()
    assert not before & {path.stat().st_ino for path in Path(trial.log.directory).glob("*s/0*")}
    catch_up(trial.indexer)
    trial.indexer.checkpoint()
    check_answers(trial.log, trial.indexer, trial.records)


def test_a_batch_over_the_ends_of_files_is_indexed_once_whichever_call_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its put begins several files; the next step repeats it."""
    use_reference(monkeypatch)
    disk = Disk(monkeypatch)
    at = 0
    while disk.calls >= at:
        at += 1
        log = indexed_bench(str(tmp_path / str(at)), **{"index.keys.entries": 4, "index.tag.entries": 4}).open()
        append(log, build_batch([Record(i, NOW_MS, b"k", b"", (("kind", b"paid"),)) for i in range(10)]))
        indexer = LogIndexer(log)
        indexer.configure()
        disk.arm(at, errno.ENOSPC)
        with contextlib.suppress(KafkaStorageError):
            catch_up(indexer)
        calls = disk.calls
        disk.arm(0, 0)
        indexer.checkpoint()
        catch_up(indexer)
        indexer.checkpoint()
        restarted = LogIndexer(log)
        restarted.configure()
        assert restarted.rebuilds == 0
        for query in (Query(key=b"k"), Query(tag=b"paid", tag_header="kind")):
            for each in (indexer, restarted):
                assert [record.offset for record in find_newest(log, each, query)] == list(range(9, -1, -1)), at
        disk.calls = calls
    assert at > 10


def test_a_put_that_failed_leaves_nothing_of_records_that_a_truncation_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its rows are in the index, above the offset up to which all are."""
    use_reference(monkeypatch)
    disk = Disk(monkeypatch)
    at = 0
    while disk.calls >= at:
        at += 1
        log = indexed_bench(str(tmp_path / str(at)), **{"index.keys.entries": 4, "index.tag.entries": 4}).open()
        append(log, build_batch([Record(0, NOW_MS, b"k", b"")]))
        indexer = indexer_of(log)
        append(log, build_batch([Record(i, NOW_MS, b"other", b"", (("kind", b"paid"),)) for i in range(10)]))
        disk.arm(at, errno.ENOSPC)
        with contextlib.suppress(KafkaStorageError):
            catch_up(indexer)
        calls = disk.calls
        disk.arm(0, 0)
        log.truncate_to(1)
        append(log, build_batch([Record(i, NOW_MS, b"k", b"", (("kind", b"open"),)) for i in range(10)]))
        catch_up(indexer)
        assert [r.offset for r in find_newest(log, indexer, Query(key=b"k"))] == list(range(10, -1, -1)), at
        found = find_newest(log, indexer, Query(tag=b"open", tag_header="kind"))
        assert [record.offset for record in found] == list(range(10, 0, -1)), at
        disk.calls = calls
    assert at > 10


@pytest.mark.parametrize("is_cut_first", [True, False], ids=["truncation, restart", "restart, truncation"])
def test_rows_of_a_put_that_failed_do_not_outlive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut_first: bool
) -> None:
    """With a checkpoint of them, nothing would show that a truncation takes their records."""
    use_reference(monkeypatch)
    disk = Disk(monkeypatch)
    at = 0
    while disk.calls >= at:
        at += 1
        bench = indexed_bench(str(tmp_path / str(at)), **{"index.keys.entries": 4, "index.tag.entries": 4})
        log = bench.open()
        append(log, build_batch([Record(i, NOW_MS, b"k", b"") for i in range(6)]))
        indexer = indexer_of(log)
        append(log, build_batch([Record(i, NOW_MS, b"other", b"", (("kind", b"paid"),)) for i in range(10)]))
        disk.arm(at, errno.ENOSPC)
        with contextlib.suppress(KafkaStorageError):
            catch_up(indexer)
        calls = disk.calls
        disk.arm(0, 0)
        log.maybe_increment_log_start_offset(5)
        indexer.trim()
        indexer.checkpoint()
        if is_cut_first:
            cut_and_append(log, 6)
        log.close()
        log = bench.open(log_start_offset=5)
        log.update_high_watermark(log.log_end_offset)
        indexer = LogIndexer(log)
        indexer.configure()
        if not is_cut_first:
            cut_and_append(log, 6)
        catch_up(indexer)
        assert [r.offset for r in find_newest(log, indexer, Query(key=b"k"))] == list(range(15, 4, -1)), at
        found = find_newest(log, indexer, Query(tag=b"open", tag_header="kind"))
        assert [record.offset for record in found] == list(range(15, 5, -1)), at
        disk.calls = calls
    assert at > 10


def test_a_file_that_a_failed_put_began_does_not_outlive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a truncation, records may follow in a file of tags that begins before it: look-ups were out of order."""
    bench = indexed_bench(str(tmp_path), **{"index.tag.entries": 4})
    log = bench.open()
    append(log, tagged(0, 6, b"paid"))
    indexer = indexer_of(log)
    append_as_follower(log, memoryview(tagged(6, 2, b"paid")), 0)
    append_as_follower(log, memoryview(tagged(12, 6, b"paid")), 0)
    log.update_high_watermark(18)
    put = ConsumeQueueFile.put_rows

    def put_some(file: ConsumeQueueFile, rows: Rows, start: int) -> int:
        if file.base_offset == 16:
            raise LogStorageError("write", file.path, errno.ENOSPC)
        return put(file, rows, start)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueueFile, "put_rows", put_some)
        with pytest.raises(KafkaStorageError):
            catch_up(indexer)
    indexer.checkpoint()
    log.close()
    log = bench.open()
    log.update_high_watermark(8)
    indexer = LogIndexer(log)
    indexer.configure()
    log.truncate_to(8)
    for offset in range(10, 18):
        append_as_follower(log, memoryview(tagged(offset, 1, b"paid")), 0)
    log.update_high_watermark(18)
    catch_up(indexer)
    query = Query(tag=b"paid", tag_header="kind")
    found = read_on(MatchReader(log, query), log, indexer, 0, max_bytes=100)
    assert [record.offset for record in found] == [*range(8), *range(10, 18)]


def tagged(first: int, count: int, tag: bytes) -> bytearray:
    """Build a batch of records with a tag, from offset ``first`` on."""
    return build_batch([Record(first + i, NOW_MS, None, b"", (("kind", tag),)) for i in range(count)])


def cut_and_append(log: UnifiedLog, offset: int) -> None:
    """Truncate a log, and append ten others."""
    log.truncate_to(offset)
    remove_checkpoints_beyond(log.environment.file_system, log.directory, log.log_end_offset)
    append(log, build_batch([Record(i, NOW_MS, b"k", b"", (("kind", b"open"),)) for i in range(10)]))


@pytest.mark.parametrize("of", ["keys", "tags"])
def test_an_index_that_could_not_be_opened_or_removed_is_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(1), 20)
    indexer = LogIndexer(log)
    indexer.configure(LogConfig())
    wanted = LogConfig(CONFIG)
    for config, name in ((wanted, "mkdir"), (LogConfig(), "unlink")):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing_below(of, getattr(os, name)))
            with pytest.raises(KafkaStorageError):
                indexer.configure(config)
        assert indexer.config is not config, "the indexer's thread tries again"
        indexer.configure(config)
        if config is wanted:
            catch_up(indexer)
            check_answers(log, indexer, records)
            indexer.checkpoint()
    assert not {"keys", "tags"} & set(os.listdir(log.directory))


@pytest.mark.parametrize("of", ["keys", "tags"])
def test_an_index_whose_files_cannot_be_removed_is_complete_after_the_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(1), 50)
    indexer = indexer_of(log)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing_below(of, os.unlink))
        with pytest.raises(KafkaStorageError):
            indexer.rebuild()
    catch_up(indexer)
    check_answers(log, indexer, records)


@pytest.mark.parametrize("of", ["keys", "tags"])
def test_a_directory_that_cannot_be_made_again_after_a_truncation_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(1), 20)
    indexer_of(log).checkpoint()
    indexer = indexer_of(log)
    log.truncate_to(records[10].offset)
    records = [record for record in records if record.offset < log.log_end_offset] + fill(log, random.Random(2), 20)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", failing_below(of, os.mkdir))
        with pytest.raises(KafkaStorageError):
            indexer.step()
    catch_up(indexer)
    check_answers(log, indexer, records)


def failing_below(directory: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of the operating system, which fails for a directory and what is in it."""

    def call(path: str, *arguments: Any, **named: Any) -> Any:
        if f"/{directory}" in os.fspath(path):
            raise OSError(errno.EACCES, "injected")
        return real(path, *arguments, **named)

    return call
