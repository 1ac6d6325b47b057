"""Key and tag indices that cannot be read under a running broker: files that are truncated while they are in use, and
bad sectors.

The process lives, and a look-up gives all records or an error. What was cut is rebuilt from the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.failing_disk import BrokerOnFailingDisk, FailingDisk
from tests.support.power.waiting import wait_until
from tests.support.raw_requests import NOW_MS, create, produce_batch
from tidelog.protocol.record.record_batch import Record, build_batch

RECORDS, PATIENCE_S = 600, 60
QUERIES = ("key=k3", "tag=paid")


def batch(first: int, count: int) -> bytes:
    kinds = (("kind", b"paid"),), (("kind", b"open"),), ()
    return bytes(
        build_batch(
            [Record(i, NOW_MS, b"k%d" % ((first + i) % 6), b"v%d" % (first + i), kinds[(first + i) % 3])
             for i in range(count)]
        )
    )  # fmt: skip


class IndexingBroker(BrokerOnFailingDisk):
    """A broker on a disk that fails, with its HTTP listener."""

    def __init__(self, directory: Path, disk: FailingDisk) -> None:
        self.admin_port = free_port()
        overrides = {"log.dirs": str(directory / "logs"), "admin.listener": f"127.0.0.1:{self.admin_port}"}
        super().__init__(directory, disk, overrides)


@contextlib.contextmanager
def indexed_broker(tmp_path: Path) -> Iterator[tuple[IndexingBroker, FailingDisk]]:
    """A topic of several index files of each kind, found in already."""
    disk = FailingDisk(tmp_path / "disk")
    with IndexingBroker(tmp_path, disk) as broker:
        create(broker.port, "t", index_keys="true", index_tag_header="kind", index_keys_slots="7",
               index_keys_entries="200", index_tag_entries="250")  # fmt: skip
        for first in range(0, RECORDS, 30):
            produce_batch(broker.port, "t", batch(first, 30))
        expect_all(broker, RECORDS)
        yield broker, disk


def find(broker: IndexingBroker, question: str) -> set[int] | None:
    """Return the offsets that a look-up gives, None for an error."""
    url = f"http://127.0.0.1:{broker.admin_port}/topics/t/records?{question}&max=999999&wait=true"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return {record["offset"] for record in json.load(answer)["records"]}
    except (urllib.error.HTTPError, ConnectionError, ValueError, OSError):
        return None


def expected(question: str, count: int) -> set[int]:
    return set(range(3, count, 6)) if question.startswith("key") else set(range(0, count, 3))


def expect_all(broker: IndexingBroker, count: int) -> None:
    for question in QUERIES:
        wait_until(partial(is_answered, broker, question, count), PATIENCE_S)


def is_answered(broker: IndexingBroker, question: str, count: int) -> bool:
    return find(broker, question) == expected(question, count)


@pytest.mark.parametrize("size", [0, 100, 3000], ids=["emptied", "within the slots", "within the entries"])
def test_index_files_that_are_truncated_kill_no_broker(tmp_path: Path, size: int) -> None:
    """A mapping of such a file would kill the process at its next look-up, or at its next put (SIGBUS)."""
    with indexed_broker(tmp_path) as (broker, _):
        files = sorted((tmp_path / "logs" / "t-0").glob("*/0*"))
        assert {path.parent.name for path in files} == {"keys", "tags"}
        assert len(files) >= 5
        for path in files:
            os.truncate(path, min(size, path.stat().st_size))
        for question in QUERIES:
            assert find(broker, question) in (None, expected(question, RECORDS))
        for path in files:
            if path.exists():
                os.truncate(path, min(size, path.stat().st_size))
        assert produce_batch(broker.port, "t", batch(RECORDS, 30)) == 0
        expect_all(broker, RECORDS + 30)
        broker.kill()
        broker.start()
        expect_all(broker, RECORDS + 30)


@pytest.mark.parametrize("kind", [".keys", ".tags"])
def test_unreadable_index_files_give_no_wrong_answer(tmp_path: Path, kind: str) -> None:
    with indexed_broker(tmp_path) as (broker, disk):
        disk.fail(kind, "read")
        for question in QUERIES:
            assert find(broker, question) in (None, expected(question, RECORDS))
        assert produce_batch(broker.port, "t", batch(RECORDS, 30)) == 0, "an index is not in the way of an append"
        disk.heal()
        expect_all(broker, RECORDS + 30)
