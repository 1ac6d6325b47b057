"""``tidelog adopt`` of a directory with links, FIFOs, sockets and directories in the place of Kafka's files.

Each file in turn is another kind of thing. The adoption is refused, naming the path, or takes over all records; it
never waits for the other end of a FIFO and never leaves records out in silence.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.kafka_directories import KafkaDirectory
from tidelog.cli import main
from tidelog.protocol.metadata_records.records import PartitionRecord, TopicRecord

TOPIC_ID = bytes(15) + b"\1"
BATCHES = 30
PROGRAM = "import sys; from tidelog.cli import main; sys.exit(main(sys.argv[1:]))"


def make_kafka_directory(path: Path) -> KafkaDirectory:
    directory = KafkaDirectory(path)
    directory.add_partition("orders", 0, TOPIC_ID, batches=BATCHES)
    directory.add_metadata(
        [(TopicRecord(name="orders", topic_id=TOPIC_ID), 0), (PartitionRecord(partition_id=0, topic_id=TOPIC_ID), 0)]
    )
    return directory


def make_link(path: Path, content: bytes) -> None:
    (path.parent / "elsewhere").write_bytes(content)
    path.symlink_to("elsewhere")


KINDS: dict[str, Callable[[Path, bytes], None]] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: os.mknod(path, stat.S_IFSOCK | 0o600),
    "directory": lambda path, _: path.mkdir(),
    "dangling": lambda path, _: path.symlink_to("nowhere"),
    "link": make_link,
}


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


class Ended(NamedTuple):
    """Exit code and standard error of a command."""

    returncode: int
    stderr: str


def run_adopt(source: Path, data: Path) -> Ended:
    """Run the command in this process; the time-out of the tests interrupts it if it waits."""
    with redirect_stderr(StringIO()) as errors, redirect_stdout(StringIO()):
        code = main(["adopt", str(source), "--data-dir", str(data)])
    return Ended(code, errors.getvalue())


def record_bytes(data: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((data / "orders-0").glob("*.log")))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_an_irregular_file_is_refused_or_does_no_harm(tmp_path: Path, kind: str) -> None:
    control = tmp_path / "control"
    assert run_adopt(make_kafka_directory(tmp_path / "kafka").path, control).returncode == 0
    for number, name in enumerate(names(tmp_path / "kafka")):
        source = make_kafka_directory(tmp_path / f"kafka-{number}").path
        content = (source / name).read_bytes()
        (source / name).unlink()
        KINDS[kind](source / name, content)
        data = tmp_path / f"data-{number}"
        done = run_adopt(source, data)
        if done.returncode == 0:
            assert record_bytes(data) == record_bytes(control), name
        else:
            assert os.path.basename(name) in done.stderr, (name, done.stderr)
            assert "Traceback" not in done.stderr
            assert not (data / "orders-0").exists(), name


@pytest.mark.parametrize("name", [b"\xff\n.log", b"1.log", b"x" * 20 + b".log", "\u0663".encode() * 20 + b".log"])
def test_a_record_file_of_another_name_is_refused_in_words(tmp_path: Path, name: bytes) -> None:
    source, data = make_kafka_directory(tmp_path / "kafka").path, tmp_path / "data"
    with open(os.path.join(os.fsencode(source / "orders-0"), name), "wb") as file:
        file.write(b"x")
    words = [sys.executable, "-c", PROGRAM, "adopt", str(source), "--data-dir", str(data)]
    done = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1, done.stdout
    assert b"Traceback" not in done.stderr
    assert b"orders-0" in done.stderr
    assert not (data / "orders-0").exists()
