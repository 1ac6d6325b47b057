"""``tidelog dump-log`` and ``tidelog check`` on a log of every kind of batch."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.logs import LogBench, append, batch, marker, producer_batch
from tidelog.cli import main
from tidelog.commands.files import check, dump_log
from tidelog.log.validation.params import AppendOrigin


def run(command: ModuleType, *arguments: str) -> int:
    return main([command.__name__.rpartition(".")[2].replace("_", "-"), *arguments])


@pytest.fixture
def directory(tmp_path: Path) -> str:
    log = LogBench(str(tmp_path), segment_bytes=2000, index_interval_bytes=100).open()
    for number in range(10):
        append(log, batch(2))
        append(log, producer_batch(number, transactional=True))
        append(log, marker(7, commit=False), AppendOrigin.COORDINATOR)
    log.close()
    return log.directory


def test_check_of_an_orderly_log(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(check, str(tmp_path)) == 0
    assert capsys.readouterr().out == f"{directory}: in order\n"


def test_check_names_file_and_byte(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = os.path.join(directory, f"{0:020d}.log")
    with open(path, "r+b") as file:
        file.seek(70)
        file.write(b"\xff")
    assert run(check, directory) == 1
    assert f"{path} at 0: wrong CRC" in capsys.readouterr().out


def test_check_tells_of_every_fault_of_a_segment(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = os.path.join(directory, f"{0:020d}.log")
    with open(path, "r+b") as file:
        file.seek(70)
        file.write(b"\xff")
        file.truncate(os.path.getsize(path) - 7)
    assert run(check, directory) == 1
    wrong, lost, cut, *_ = capsys.readouterr().out.splitlines()
    assert "wrong CRC" in wrong
    assert "offsets 0 to 1 are lost to damage" in lost
    assert "bytes of an incomplete last batch" in cut


def test_check_of_an_empty_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "meta.properties").touch()
    (tmp_path / "gone-0.0123-delete").mkdir()
    (tmp_path / "gone-0.0123-delete" / f"{0:020d}.log").touch()
    assert run(check, str(tmp_path)) == 0
    assert capsys.readouterr().out == "no partitions\n"


def test_check_reports_a_partition_without_segments(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in os.listdir(directory):
        if name.endswith(".log"):
            os.unlink(os.path.join(directory, name))
    (tmp_path / "meta.properties").touch()
    assert run(check, str(tmp_path)) == 1
    assert f"{directory}: no segment" in capsys.readouterr().out


def test_check_tells_programs_of_each_partition(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(check, "--json", str(tmp_path)) == 0
    assert json.loads(capsys.readouterr().out) == [{"directory": directory, "findings": []}]
    for name in os.listdir(directory):
        if name.endswith(".log"):
            os.unlink(os.path.join(directory, name))
    assert run(check, "--json", directory) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["findings"] == [{"path": directory, "position": -1, "message": "no segment"}]


def test_check_of_a_missing_directory_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(check, str(tmp_path / "none")) == 2
    assert "none" in capsys.readouterr().err


def refuse_listing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to list a directory, as the system does for another user's."""

    def refuse(call: Callable[..., Any]) -> Callable[..., Any]:
        def refusing(listed: str) -> Any:
            if os.path.normpath(listed) == path:
                raise PermissionError(errno.EACCES, "Permission denied", listed)
            return call(listed)

        return refusing

    monkeypatch.setattr(os, "listdir", refuse(os.listdir))
    monkeypatch.setattr(os, "scandir", refuse(os.scandir))


@pytest.mark.parametrize(("given", "denied"), [("", ""), ("", "topic-0"), ("topic-0", "topic-0"), ("other", "other")])
def test_check_of_a_directory_that_the_user_may_not_list_fails(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    given: str, denied: str,
) -> None:  # fmt: skip
    (tmp_path / "other").mkdir()
    path = os.path.normpath(tmp_path / denied)
    refuse_listing(path, monkeypatch)
    assert run(check, str(tmp_path / given)) == 2
    assert capsys.readouterr().err == f"tidelog check: list of {path} failed: Permission denied\n"


def test_check_ignores_a_directory_without_a_partitions_name_that_the_user_may_not_list(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lost+found").mkdir()
    refuse_listing(str(tmp_path / "lost+found"), monkeypatch)
    assert run(check, str(tmp_path)) == 0
    assert capsys.readouterr().out == f"{directory}: in order\n"


def test_dump_prints_batches_records_and_entries(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name[:20].isdigit()]
    assert run(dump_log, "--print-data-log", *names) == 0
    out = capsys.readouterr().out
    assert "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1" in out
    record = "| offset: 1 CreateTime: 1700000000001 keySize: 3 valueSize: 5 sequence: -1 headerKeys: []"
    assert f"{record} key: key payload: value" in out
    assert "isTransactional: true isControl: true" in out
    assert "version: 0 producerId: 7 firstOffset: 2 lastOffset: 3 lastStableOffset: 4" in out
    assert "producerId: 7 producerEpoch: 0 coordinatorEpoch: 0 currentTxnFirstOffset: OptionalLong.empty" in out
    assert out.count("isvalid: true") == 30


def test_dump_as_json_has_an_object_for_each_line_of_text(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name[:20].isdigit()]
    assert run(dump_log, "--print-data-log", *names) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("Dumping ")]
    assert run(dump_log, "--print-data-log", "--json", *names) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(entries) == len(lines)
    kinds = {"segment", "batch", "record", "entry", "aborted", "producer"}
    assert {one["type"] for one in entries} == kinds
    assert {one["file"] for one in entries} == set(names)
    first = next(one for one in entries if one["type"] == "batch")
    assert (first["baseOffset"], first["isTransactional"], first["deleteHorizonMs"]) == (0, False, None)
    record = next(one for one in entries if one["type"] == "record" and one["offset"] == 1)
    assert (record["key"], record["payload"], record["headerKeys"]) == ("key", "value", [])


def test_dump_checks_indices(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = os.path.join(directory, f"{0:020d}.index")
    assert run(dump_log, "--index-sanity-check", path) == 0
    assert "passed sanity check" in capsys.readouterr().out
    with open(path, "r+b") as file:
        file.write(b"\x00\x00\x00\x77")
    assert run(dump_log, path) == 1


def test_dump_tells_of_a_cut_batch(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = os.path.join(directory, f"{0:020d}.log")
    os.truncate(path, os.path.getsize(path) - 3)
    assert run(dump_log, path) == 1
    assert "invalid bytes at the end" in capsys.readouterr().out


def test_dump_names_a_file_that_is_no_segment_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert run(dump_log, str(tmp_path / "notes.txt")) == 1
    assert "not named as a segment file" in capsys.readouterr().err
