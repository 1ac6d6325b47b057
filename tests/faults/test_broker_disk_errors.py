"""One call of the file system fails during a request to coordinators, topics, configs or share groups (fault F9 of
docs/internals/faults.md).

Any call that the request leads to fails once, with EIO or ENOSPC. The client is answered, and after the next start
everything that was acknowledged before and after is there. ``TIDELOG_ALL_DISK_ERRORS`` tries every call, not some.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.test_disk_errors import ALL, chosen
from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.log_lines import no_log_lines
from tests.support.power.in_process import InProcessAsker, InProcessClient, story_in
from tests.support.power.verdict import Verdict
from tests.support.power.workloads import values
from tests.support.share_client import ACCEPT
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.loop.thread_rule import suspended
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import BatchOptions

TEXTS = {
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "log.segment.delete.delay.ms": "0",
    "log.cleaner.enable": "false",
}
SYNCED = {"log.flush.interval.messages": "1"}
CODES = [errno.EIO, errno.ENOSPC]
SAMPLE = None if ALL else 2


class World:
    """A broker over a disk that can fail, a client with an open transaction and acquired records."""

    def __init__(self, directory: Path, texts: dict[str, str]) -> None:
        directory.mkdir()
        self.directory, self.texts = directory / "data", texts
        self.directory.mkdir()
        self.trace = directory / "trace"
        self.trace.touch()
        self.disk = FaultyFileSystem(str(self.directory))
        self.data = DataBroker(self.directory, texts, self.disk)
        self.asker = InProcessAsker(self.data, self.trace)
        self._prepare()

    def _prepare(self) -> None:
        asker = self.asker
        topic_id = asker.create("orders")
        asker.create("gone")
        asker.create("paid")
        asker.produce("orders", values("orders", 0, 5))
        asker.configure("orders", "retention.ms", "1000000000")
        asker.commit_offset("group", "orders", 1)
        self.producer = asker.init_producer("payments")
        asker.add_to_transaction("payments", self.producer, "paid", [0])
        options = BatchOptions(
            producer_id=self.producer[0], producer_epoch=self.producer[1], base_sequence=0, is_transactional=True
        )
        asker.produce("paid", values("paid", 0, 3), 0, options, transaction=1)
        self.member = asker.share("workers", "orders", topic_id, "m")
        (self.run, *_) = self.member.fetch(max_records=2)

    def checkpoints(self) -> None:
        """Flush, and write the checkpoints, as the background jobs do."""
        manager = self.data.log_manager
        manager.flush_dirty_logs()
        manager.checkpoint_recovery_points()
        manager.checkpoint_log_start_offsets()
        manager.checkpoint_high_watermarks()

    def check_after_a_kill(self) -> None:
        """Check that everything acknowledged is there on a disk that works."""
        with suppress(KafkaStorageError):
            self.data.broker.controller.close()
        self.disk.kill()
        data = DataBroker(self.directory, self.texts)
        try:
            assert not data.log_manager.refused
            client = InProcessClient(data)
            Verdict(client, story_in(self.trace), durable=True, ordered=True).examine()  # type: ignore[arg-type]
        finally:
            data.broker.controller.close()


Work = Callable[[World], object]
WORKS: dict[str, Work] = {
    "produce": lambda world: world.asker.produce("orders", values("more", 0, 3)),
    "commit offset": lambda world: world.asker.commit_offset("group", "orders", 2),
    "commit to a new group": lambda world: world.asker.commit_offset("other", "orders", 2),
    "commit a transaction": lambda world: world.asker.end_transaction("payments", world.producer, 1, commit=True),
    "abort a transaction": lambda world: world.asker.end_transaction("payments", world.producer, 1, commit=False),
    "new transactional id": lambda world: world.asker.init_producer("other"),
    "create": lambda world: world.asker.create("new", 2),
    "widen": lambda world: world.asker.widen("orders", 3),
    "delete": lambda world: world.asker.delete("gone"),
    "delete records": lambda world: world.asker.delete_records("orders", 2),
    "configure": lambda world: world.asker.configure("orders", "retention.ms", "2000000000"),
    "quota": lambda world: world.asker.set_quota("writer", 1000),
    "credential": lambda world: world.asker.set_credential("anna", 4096),
    "accept": lambda world: world.asker.acknowledge(world.member, ("workers", "orders"), world.run, ACCEPT),
    "checkpoints": lambda world: world.checkpoints(),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Refused requests are reported at length."""
    with no_log_lines(), suspended():
        yield


def calls_of(directory: Path, texts: dict[str, str], work: Work) -> int:
    """Count the calls of a request without a fault, including reads; check that it leaves no error."""
    world = World(directory, texts)
    world.disk.counts_reads = True
    before = len(world.disk.calls)
    work(world)
    count = len(world.disk.calls) - before
    world.disk.counts_reads = False
    world.check_after_a_kill()
    return count


@pytest.mark.parametrize("synced", [False, True], ids=["unsynced", "flush.messages=1"])
@pytest.mark.parametrize("work", WORKS)
def test_an_error_at_a_call_of_a_request(tmp_path: Path, work: str, synced: bool) -> None:
    texts = {**TEXTS, **(SYNCED if synced else {})}
    count = calls_of(tmp_path / "undisturbed", texts, WORKS[work])
    assert count > 0
    for code in CODES:
        for at in chosen(range(count), f"{work} {code}")[:SAMPLE]:
            world = World(tmp_path / f"{code}-{at}", texts)
            world.disk.counts_reads = True
            begin = len(world.disk.calls)
            world.disk.fail_at = {begin + at: code}
            with suppress(AssertionError, KafkaStorageError):
                WORKS[work](world)
            failed = world.disk.calls[begin + at : begin + at + 1]
            world.disk.counts_reads, world.disk.fail_at = False, {}
            with suppress(AssertionError, KafkaStorageError):
                world.asker.produce("orders", values("later", 0, 2))
            try:
                world.check_after_a_kill()
            except AssertionError as error:
                raise AssertionError(f"{errno.errorcode[code]} at call {at}: {failed}") from error
