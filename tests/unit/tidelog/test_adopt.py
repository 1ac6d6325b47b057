"""``tidelog adopt``: what it prints and returns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka_directories import CLUSTER_ID, KafkaDirectory
from tidelog.broker.adoption.adopt import UnsyncedError
from tidelog.cli import main
from tidelog.protocol.errors import KafkaStorageError


@pytest.fixture
def source(tmp_path: Path) -> KafkaDirectory:
    directory = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    directory.add_partition("orders", 0, bytes(15) + b"\1")
    return directory


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """The command sets its process's umask; a test's has it back."""
    mask = os.umask(0o022)
    yield
    os.umask(mask)


def test_adopt_prints_its_actions_and_the_next_command(
    source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert main(["adopt", str(source.path), "--data-dir", str(data)]) == 0
    printed = capsys.readouterr().out
    assert f"cluster {CLUSTER_ID}, node 3" in printed
    assert "topic orders: 1 partitions, " in printed
    assert "left out: topic configs, quotas, ACLs" in printed
    assert printed.endswith(f"done: tidelog serve --data-dir {data}\n")
    assert main(["adopt", str(source.path), "--data-dir", str(data)]) == 0
    assert capsys.readouterr().out.endswith("nothing to do\n")


@pytest.mark.parametrize("option", ["--dry-run", "--copy"])
def test_as_json_it_prints_one_document(
    source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["adopt", str(source.path), "--data-dir", str(tmp_path / "data"), "--json", option]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["adopted"], found["cluster_id"], found["problems"]) == (option == "--copy", CLUSTER_ID, [])
    (topic,) = found["topics"]
    assert (topic["name"], topic["partitions"], topic["internal"]) == ("orders", 1, False)


def test_problems_are_in_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", str(tmp_path / "nowhere"), "--data-dir", str(tmp_path / "data"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == [f"{tmp_path / 'nowhere'} does not exist"]


def test_a_dry_run_says_so(source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", str(source.path), "--data-dir", str(tmp_path / "data"), "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("dry run: nothing was written\n")
    assert not (tmp_path / "data").exists()


def test_problems_go_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", str(tmp_path / "nowhere"), "--data-dir", str(tmp_path / "data")]) == 1
    assert capsys.readouterr().err == f"problem: {tmp_path / 'nowhere'} does not exist\nnothing was taken over\n"


@pytest.mark.parametrize("user", [0, 1000])
def test_root_is_told_that_only_root_can_serve_the_adopted_files(
    source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    user: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("os.geteuid", lambda: user)
    data = tmp_path / "data"
    note = f"note: only root can serve {data}; for a broker of another user: chown -R USER {data}\n"
    for option in ("--dry-run", "--copy"):
        assert main(["adopt", str(source.path), "--data-dir", str(data), option]) == 0
        assert (note in capsys.readouterr().out) == (user == 0)
    assert main(["adopt", str(source.path), "--data-dir", str(tmp_path / "other"), "--json", "--dry-run"]) == 0
    assert ("chown -R" in "".join(json.loads(capsys.readouterr().out)["notes"])) == (user == 0)


def test_root_is_told_that_a_shared_file_has_one_owner(
    source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for option, is_shared in (("--copy", False), ("--link", True)):
        assert main(["adopt", str(source.path), "--data-dir", str(tmp_path / "data"), option, "--dry-run"]) == 0
        assert ("with --link Kafka's own record files change their owner too" in capsys.readouterr().out) == is_shared


def test_topic_configs_are_read_from_a_file(
    source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "topics.txt"
    words = ["adopt", str(source.path), "--data-dir", str(tmp_path / "data"), "--topic-configs", str(file), "--dry-run"]
    assert main(words) == 1
    assert "topics.txt" in capsys.readouterr().err
    file.write_text("Configs for topic 'orders' are retention.ms=5\n")
    assert main(words) == 0
    assert "bytes retention.ms=5\n" in capsys.readouterr().out


def test_topics_can_be_left_out(source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", str(source.path), "--data-dir", str(tmp_path / "data"), "--leave-out", "orders"]) == 0
    assert "left out: topic orders: by --leave-out" in capsys.readouterr().out


def test_internal_topics_are_reported_in_one_line(
    source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        source.add_partition("__consumer_offsets", number, bytes(15) + b"\2", batches=1)
    assert main(["adopt", str(source.path), "--data-dir", str(tmp_path / "data"), "--dry-run"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "__consumer_offsets" in line]
    assert len(lines) == 1
    assert lines[0].startswith("internal topics: __consumer_offsets (5 partitions), ")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KafkaStorageError("full"), "tidelog adopt: full; nothing was taken over\n"),
        (UnsyncedError("bad"), "tidelog adopt: bad; everything was taken over, or nothing: run the command again\n"),
    ],
)
def test_an_error_says_what_was_taken_over(
    source: KafkaDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    error: Exception, expected: str,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("tidelog.broker.adoption.adopt.carry_out", fail)
    assert main(["adopt", str(source.path), "--data-dir", str(tmp_path / "data")]) == 1
    assert capsys.readouterr().err == expected
