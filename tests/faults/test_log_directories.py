"""Several log directories of a real broker (fault F9 of docs/internals/faults.md): one fails and the others are served,
and a record whose sync failed is not acknowledged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import raw_client
from tests.support.failing_disk import BrokerOnFailingDisk, FailingDisk
from tests.support.raw_requests import create, produce
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse


def directories(port: int) -> dict[str, tuple[int, set[int]]]:
    """Ask DescribeLogDirs: path -> (error code, partitions there)."""
    with raw_client.connect(port) as connection:
        connection.sendall(raw_client.frame(35, 1, 1, DescribeLogDirsRequest(topics=None).encode(1)))
        answer = DescribeLogDirsResponse.decode(memoryview(raw_client.receive_frame(connection))[4:], 1)
    return {
        result.log_dir: (result.error_code, {p.partition_index for topic in result.topics for p in topic.partitions})
        for result in answer.results
    }


@pytest.mark.parametrize("durable", [True, False], ids=["flush.messages=1", "page cache"])
def test_one_directory_fails_and_the_other_serves(tmp_path: Path, durable: bool) -> None:
    disk = FailingDisk(tmp_path / "disk")
    first, second = tmp_path / "a", tmp_path / "b"
    overrides = {"log.dirs": f"{first},{second}"}
    with BrokerOnFailingDisk(tmp_path, disk, overrides) as broker:
        create(broker.port, "t", 6, **({"flush_messages": "1"} if durable else {}))
        assert [produce(broker.port, "t", number) for number in range(6)] == [0] * 6
        placed = directories(broker.port)
        assert [code for code, _ in placed.values()] == [0, 0]
        dead, alive = placed[str(second)][1], placed[str(first)][1]
        assert dead | alive == set(range(6))
        assert len(dead) == len(alive) == 3
        disk.fail(second)
        for _ in range(2):
            for number in range(6):
                expected = KafkaStorageError.code if number in dead else 0
                assert produce(broker.port, "t", number) == expected
        after = directories(broker.port)
        assert after[str(second)] == (KafkaStorageError.code, set())
        assert after[str(first)] == (0, alive)
        disk.heal()
        assert produce(broker.port, "t", min(dead)) == KafkaStorageError.code, "offline until restart, no second try"
        create(broker.port, "new", 2)
        assert [produce(broker.port, "new", number) for number in range(2)] == [0, 0]
        broker.terminate()
        assert (first / ".kafka_cleanshutdown").exists()
        assert not (second / ".kafka_cleanshutdown").exists(), "what is not known to be whole is recovered"
        broker.start()
        assert [produce(broker.port, "t", number) for number in range(6)] == [0] * 6
        assert [code for code, _ in directories(broker.port).values()] == [0, 0]


def test_a_directory_that_is_no_directory_at_the_start_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    first, second, away = tmp_path / "a", tmp_path / "b", tmp_path / "away"
    disk = FailingDisk(tmp_path / "disk")
    with BrokerOnFailingDisk(tmp_path, disk, {"log.dirs": f"{first},{second}"}) as broker:
        create(broker.port, "t", 4)
        placed = directories(broker.port)
        dead, alive = placed[str(second)][1], placed[str(first)][1]
        broker.terminate()
        second.rename(away)
        second.write_text("mounted wrongly")
        broker.start()
        after = directories(broker.port)
        assert after == {str(first): (0, alive), str(second): (KafkaStorageError.code, set())}
        answers = [produce(broker.port, "t", number) for number in range(4)]
        assert answers == [KafkaStorageError.code if number in dead else 0 for number in range(4)]
        create(broker.port, "new", 2)
        assert [produce(broker.port, "new", number) for number in range(2)] == [0, 0]
        broker.terminate()
        second.unlink()
        away.rename(second)
        broker.start()
        assert [produce(broker.port, "t", number) for number in range(4)] == [0] * 4


def test_a_background_sync_that_fails_takes_the_directory_offline(tmp_path: Path) -> None:
    """``flush.ms``: no request waits for it, but what follows must not be acknowledged as if it had worked."""
    disk = FailingDisk(tmp_path / "disk")
    overrides = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}", "log.flush.scheduler.interval.ms": "50"}
    with BrokerOnFailingDisk(tmp_path, disk, overrides) as broker:
        create(broker.port, "t", 2, flush_ms="100")
        assert [produce(broker.port, "t", number) for number in range(2)] == [0, 0]
        dead = directories(broker.port)[str(tmp_path / "b")][1].pop()
        disk.fail(tmp_path / "b")
        deadline = time.monotonic() + 20
        while directories(broker.port)[str(tmp_path / "b")][0] == 0:
            produce(broker.port, "t", dead)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert produce(broker.port, "t", dead) == KafkaStorageError.code
        assert produce(broker.port, "t", 1 - dead) == 0
