"""Files that cannot be read under a running broker: bad sectors (EIO), and files that are truncated while they are in
use.

The process lives, other partitions are served, and what cannot be read is answered with an error: never with other
records. After a restart on a good disk everything is there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.failing_disk import BrokerOnFailingDisk, FailingDisk
from tests.support.raw_requests import NOW_MS, create, fetch_error, fetch_values, offset, produce, produced
from tidelog.protocol.errors import KafkaStorageError

RECORDS = 400
OK, STORAGE_ERROR = 0, KafkaStorageError.code


@contextlib.contextmanager
def broker_with_records(tmp_path: Path, **overrides: str) -> Iterator[tuple[BrokerOnFailingDisk, FailingDisk]]:
    """Two topics with records, in several segments, all indices open."""
    disk = FailingDisk(tmp_path / "disk")
    settings = {"log.dirs": str(tmp_path / "logs"), **overrides}
    with BrokerOnFailingDisk(tmp_path, disk, settings) as broker:
        for topic in ("t", "other"):
            create(broker.port, topic, index_interval_bytes="100", segment_bytes="20000")
        for number in range(RECORDS):
            assert produce(broker.port, "t", value=b"v%d" % number, timestamp=NOW_MS + number) == OK
        assert produce(broker.port, "other") == OK
        look_everywhere(broker)
        yield broker, disk


def look_everywhere(broker: BrokerOnFailingDisk) -> set[int]:
    """Fetch at offsets in no order, so that each is looked up; return the error codes."""
    codes = {fetch_error(broker.port, "t", number * 37 % RECORDS) for number in range(RECORDS // 4)}
    for number in range(0, RECORDS, 40):
        offset(broker.port, "t", NOW_MS + number)
    return codes


def expect_all(broker: BrokerOnFailingDisk, count: int = RECORDS) -> None:
    found = fetch_values(broker.port, "t")
    assert {at: found[at] for at in range(RECORDS)} == {at: b"v%d" % at for at in range(RECORDS)}
    assert len(found) == count


@pytest.mark.parametrize("is_restarted", [False, True], ids=["written", "loaded"])
@pytest.mark.parametrize("size", [0, 100], ids=["emptied", "within an entry"])
def test_indices_that_are_truncated_kill_no_broker(tmp_path: Path, size: int, is_restarted: bool) -> None:
    """A mapping of such a file would kill the process at its next look-up (SIGBUS)."""
    with broker_with_records(tmp_path) as (broker, _):
        if is_restarted:
            broker.terminate()
            broker.start()
            look_everywhere(broker)
        for path in (tmp_path / "logs" / "t-0").glob("*.*index"):
            os.truncate(path, min(size, path.stat().st_size))
        assert look_everywhere(broker) <= {OK, STORAGE_ERROR}
        code, at = produced(broker.port, "t", b"more")
        assert (code, at) in ((OK, RECORDS), (STORAGE_ERROR, -1))
        assert produce(broker.port, "other") == OK
        broker.kill()
        broker.start()
        expect_all(broker, RECORDS + (code == OK))
        assert look_everywhere(broker) == {OK}


@pytest.mark.parametrize("kind", [".log", ".index", ".timeindex"])
def test_fetches_during_read_errors_get_a_storage_error_or_the_records(tmp_path: Path, kind: str) -> None:
    with broker_with_records(tmp_path) as (broker, disk):
        first = sorted((tmp_path / "logs" / "t-0").glob("*" + kind))[0]
        disk.fail(first, "read")
        codes = look_everywhere(broker)
        assert codes == {OK, STORAGE_ERROR} if kind != ".timeindex" else codes == {OK}
        assert produce(broker.port, "t", value=b"more") == OK, "only the first segment is bad"
        assert produce(broker.port, "other") == OK
        disk.heal()
        assert look_everywhere(broker) == {OK}, "a sector that can be read again is read again"
        expect_all(broker, RECORDS + 1)
