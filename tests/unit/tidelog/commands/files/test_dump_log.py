"""``tidelog dump-log`` on damaged files, and on records that try to look like other lines."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.logs import NOW_MS, LogBench, append, batch, marker, producer_batch
from tidelog.cli import main
from tidelog.log import check
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, set_crc

BATCHES = 8
LOG, INDEX, TIME_INDEX = (f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex"))


class Printed(NamedTuple):
    """Exit code, and the lines of standard output and of standard error."""

    code: int
    out: list[str]
    err: list[str]

    def offsets(self) -> list[int]:
        return [int(line.split()[1]) for line in self.out if line.startswith("baseOffset: ")]


Dump = Callable[..., Printed]


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Dump:
    def run(*words: object) -> Printed:
        code = main(["dump-log", *map(str, words)])
        printed = capsys.readouterr()
        return Printed(code, printed.out.split("\n")[:-1], printed.err.split("\n")[:-1])

    return run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of eight batches of one record in one segment, whose index names all but the first."""
    log = LogBench(str(tmp_path), index_interval_bytes=1).open()
    for number in range(BATCHES):
        append(log, batch(1, timestamp=NOW_MS + number))
    log.close()
    return Path(log.directory)


@pytest.fixture
def size(directory: Path) -> int:
    """The bytes of each batch."""
    return (directory / LOG).stat().st_size // BATCHES


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def write_segment(directory: Path, parts: Sequence[bytes | bytearray], base: int = 0) -> Path:
    path = directory / f"{base:020d}.log"
    path.write_bytes(b"".join(parts))
    return path


# ---- the check of indices


def test_a_wrong_index_beside_a_damaged_batch_does_not_pass(directory: Path, dump: Dump) -> None:
    overwrite(directory / LOG, 70, b"\xff")
    assert dump("--index-sanity-check", directory / INDEX).code == 0, "its entries name batches that can be read"
    overwrite(directory / INDEX, 8 * 3 + 4, struct.pack(">i", 1))
    overwrite(directory / TIME_INDEX, 12 * 3 + 8, struct.pack(">i", 6))
    printed = dump("--index-sanity-check", directory / INDEX, directory / TIME_INDEX)
    assert printed.code == 1
    assert not any("passed" in line for line in printed.out)
    assert printed.err[0].startswith(f"{directory / INDEX} at 3: ")
    assert printed.err[-1].startswith(f"{directory / TIME_INDEX} at ")


def test_entries_for_damaged_bytes_are_not_called_sane(directory: Path, size: int, dump: Dump) -> None:
    overwrite(directory / LOG, 2 * size + 65, b"\xff")
    printed = dump("--index-sanity-check", directory / INDEX, directory / TIME_INDEX)
    assert printed.code == 1
    unchecked = "1 of its entries cannot be compared with the segment, which is damaged there"
    assert printed.err == [f"{directory / INDEX} at 1: {unchecked}", f"{directory / TIME_INDEX} at 1: {unchecked}"]
    assert dump(directory / INDEX).code == 0, "no entry is wrong"


def write_index(directory: Path, size: int, entries: Sequence[tuple[int, int]]) -> None:
    """Write the offset index of (last offset, number of the batch at its position)."""
    (directory / INDEX).write_bytes(b"".join(struct.pack(">ii", offset, at * size) for offset, at in entries))


@pytest.mark.parametrize("entries", [[(2, 1)], [(2, 1), (3, 3), (7, 4)], [(7, 1)], [(1, 1), (6, 5), (7, 7)]])
def test_entries_of_appends_of_several_batches_are_sound(
    directory: Path, size: int, entries: Sequence[tuple[int, int]], dump: Dump
) -> None:
    """A follower of Apache Kafka appends the batches of a fetch at once: last offset of all, position of the first."""
    write_index(directory, size, entries)
    printed = dump("--index-sanity-check", directory / INDEX)
    assert (printed.code, printed.err) == (0, [])
    assert main(["check", str(directory)]) == 0


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([(2, 3)], [0]),
        ([(8, 1)], [0]),
        ([(3, 1), (4, 3)], [0]),
        ([(3, 1), (4, 2), (5, 3), (6, 6)], [0, 1]),
        ([(1, 1), (3, 8)], [1]),
    ],
    ids=["before its batch", "after the end", "in the next append", "shifted", "beyond the file"],
)
def test_entries_that_no_append_could_have_made_are_wrong(
    directory: Path, size: int, entries: Sequence[tuple[int, int]], wrong: list[int], dump: Dump
) -> None:
    write_index(directory, size, entries)
    printed = dump("--index-sanity-check", directory / INDEX)
    assert printed.code == 1
    assert [line.split(": ")[0] for line in printed.err] == [f"{directory / INDEX} at {slot}" for slot in wrong]
    assert main(["check", str(directory)]) == 1


def test_an_entry_within_a_batch_is_wrong(directory: Path, size: int, dump: Dump) -> None:
    (directory / INDEX).write_bytes(struct.pack(">ii", 3, size + 1))
    printed = dump("--index-sanity-check", directory / INDEX)
    assert printed.err == [f"{directory / INDEX} at 0: no batch begins at byte {size + 1}"]


def test_an_entry_whose_last_batch_is_damaged_is_not_called_sane_or_wrong(
    directory: Path, size: int, dump: Dump
) -> None:
    write_index(directory, size, [(2, 1), (5, 3)])
    overwrite(directory / LOG, 2 * size + 65, b"\xff")
    printed = dump("--index-sanity-check", directory / INDEX)
    assert printed.code == 1
    assert printed.err == [
        f"{directory / INDEX} at 0: 1 of its entries cannot be compared with the segment, which is damaged there"
    ]
    assert dump(directory / INDEX).code == 0, "no entry is wrong"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("data", [bytes(range(77)), b"\0" * 24, b""], ids=["noise", "zeros", "empty"])
def test_an_index_without_a_segment_does_not_pass(tmp_path: Path, suffix: str, data: bytes, dump: Dump) -> None:
    path = tmp_path / f"{5:020d}{suffix}"
    path.write_bytes(data)
    printed = dump("--index-sanity-check", path)
    assert printed.code == 1
    assert printed.err[-1] == f"{path}: there is no segment with which to compare it"
    assert not any("passed" in line for line in printed.out)


@pytest.mark.parametrize("name", [INDEX, TIME_INDEX])
def test_an_index_with_a_part_of_an_entry_does_not_pass(directory: Path, name: str, dump: Dump) -> None:
    with (directory / name).open("ab") as file:
        file.write(b"\0\0\7")
    for words in ((), ("--index-sanity-check",)):
        printed = dump(*words, directory / name)
        assert (printed.code, len(printed.err)) == (1, 1)
        assert "bytes are not a multiple of an entry's" in printed.err[0]


@pytest.mark.parametrize("name", [INDEX, TIME_INDEX])
def test_zeros_may_follow_the_entries_but_nothing_after_them(directory: Path, name: str, dump: Dump) -> None:
    path = directory / name
    size = 8 if name == INDEX else 12
    entries = path.stat().st_size // size
    with path.open("ab") as file:
        file.write(b"\0" * 2 * size)
    assert dump("--index-sanity-check", path).code == 0
    with path.open("ab") as file:
        file.write(b"\1" * size)
    printed = dump("--index-sanity-check", path)
    assert printed.code == 1
    assert printed.err == [f"{path} at {entries}: an empty entry is followed by other bytes than zeros"]


def test_each_segment_is_read_once(tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBench(str(tmp_path), segment_bytes=200, index_interval_bytes=1).open()
    for _ in range(6):
        append(log, batch(1))
    log.close()
    read: list[int] = []
    whole = check._Checker._read_segment

    def read_segment(checker: check._Checker, base: int, findings: list[check.Finding]) -> object:
        read.append(base)
        return whole(checker, base, findings)

    monkeypatch.setattr(check._Checker, "_read_segment", read_segment)
    paths = sorted(path for path in Path(log.directory).iterdir() if path.suffix in (".index", ".timeindex"))
    assert dump("--index-sanity-check", *paths).code == 0
    assert len(paths) > 4
    assert read == sorted(int(path.stem) for path in paths if path.suffix == ".index")


# ---- damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"\0" * 16 + b"\7", "impossible batch header (magic 7, size 0) at byte {position}"),
        (b"\0" * 61, "impossible batch header (magic 0, size 0) at byte {position}"),
    ],
    ids=["magic", "zeros"],
)
def test_damage_is_named_and_the_output_goes_on(
    directory: Path, size: int, dump: Dump, damage: bytes, message: str
) -> None:
    path = directory / LOG
    overwrite(path, 2 * size, damage)
    printed = dump(path)
    assert printed.code == 1
    assert printed.offsets() == [0, 1, 3, 4, 5, 6, 7]
    assert [line.partition(" of /")[0] for line in printed.err] == [
        f"{path} at {2 * size}: {message.format(position=2 * size)}"
    ]
    assert f"Found {size} invalid bytes at byte {2 * size} of {path}" in printed.out


def test_damage_ends_the_output_of_its_file_alone(directory: Path, size: int, dump: Dump) -> None:
    """Without an index nothing says where the next batch begins."""
    path = directory / LOG
    overwrite(path, 2 * size, b"\0" * 61)
    (directory / INDEX).unlink()
    other = write_segment(directory, [batch(1)], base=100)
    printed = dump(path, other)
    assert printed.code == 1
    assert printed.offsets() == [0, 1, 0]
    assert f"Found {6 * size} invalid bytes at the end of {path}" in printed.out


def test_a_wrong_checksum_is_named(directory: Path, size: int, dump: Dump) -> None:
    path = directory / LOG
    overwrite(path, 2 * size + 65, b"\xff")
    printed = dump("--deep-iteration", path)
    assert printed.code == 1
    assert printed.offsets() == list(range(BATCHES))
    assert printed.err == [f"{path} at {2 * size}: wrong CRC in the batch of offset 2"]
    assert sum(line.endswith("isvalid: false") for line in printed.out) == 1
    assert sum(line.startswith("| offset: ") for line in printed.out) == BATCHES - 1


def test_a_damaged_size_does_not_hide_the_next_batches(directory: Path, size: int, dump: Dump) -> None:
    path = directory / LOG
    overwrite(path, 2 * size + 8, struct.pack(">i", 3 * size))
    printed = dump(path)
    assert printed.offsets() == list(range(BATCHES))
    assert printed.err == [f"{path} at {2 * size}: wrong CRC in the batch of offset 2"]


@pytest.mark.parametrize(
    ("attributes", "count", "message"),
    [
        (5, 1, "compression type id: 5"),
        (1, 1, ""),
        (2, 1, ""),
        (3, 1, ""),
        (4, 1, ""),
        (0, 2, "record"),
        (0, -5, "record count"),
        (0x20, 1, "Control record"),
    ],
)
def test_records_that_cannot_be_read_do_not_end_the_output(
    tmp_path: Path, dump: Dump, attributes: int, count: int, message: str
) -> None:
    """The checksums are right: the writer was wrong."""
    bad = build_batch([Record(1, NOW_MS, b"k", b"v")])
    struct.pack_into(">h", bad, 21, attributes)
    struct.pack_into(">i", bad, 57, count)
    set_crc(bad, 0, len(bad))
    first, last = build_batch([Record(0, NOW_MS, b"k", b"v")]), build_batch([Record(2, NOW_MS, b"k", b"v")])
    path = write_segment(tmp_path, [first, bad, last])
    printed = dump("--print-data-log", path)
    assert printed.code == 1
    assert printed.offsets() == [0, 1, 2]
    (told,) = printed.err
    assert told.startswith(f"{path} at {len(first)}: the records of offset 1 on cannot be read: ")
    assert message in told
    assert printed.out[-1].startswith("| offset: 2 ")


def test_a_damaged_wrapper_does_not_end_the_output(tmp_path: Path, dump: Dump) -> None:
    options = MessageSetOptions(magic=1, compression=2)
    wrapper = bytearray(build_message_set([Record(0, NOW_MS, b"k", b"v" * 100)], options))
    wrapper[40] ^= 0xFF
    struct.pack_into(">I", wrapper, 12, zlib.crc32(wrapper[16:]))
    path = write_segment(tmp_path, [wrapper, build_batch([Record(1, NOW_MS, b"k", b"v")])])
    printed = dump("--print-data-log", path)
    assert (printed.code, printed.offsets()) == (1, [1])
    assert printed.err[0].startswith(f"{path} at 0: ")


def test_other_damaged_files_are_named_and_do_not_end_the_output(tmp_path: Path, dump: Dump) -> None:
    files = {
        ".snapshot": b"\0\1\0\0\0\0\0\0\0\0",
        ".txnindex": struct.pack(">hqqqq", 3, 1, 2, 3, 4) + struct.pack(">hqqqq", 0, 5, 6, 7, 8) + b"x",
    }
    for suffix, data in files.items():
        (tmp_path / f"{0:020d}{suffix}").write_bytes(data)
    (tmp_path / f"{7:020d}.log").mkdir()
    paths = [tmp_path / f"{0:020d}{suffix}" for suffix in files]
    good = write_segment(tmp_path, [batch(1)], base=9)
    missing = [tmp_path / f"{8:020d}{suffix}" for suffix in (".log", ".index", ".snapshot", ".txnindex", ".timeindex")]
    printed = dump(*paths, tmp_path / f"{7:020d}.log", *missing, good)
    assert printed.code == 1
    assert printed.offsets() == [0]
    for path in [*paths, *missing, tmp_path / f"{7:020d}.log"]:
        assert any(str(path) in line for line in printed.err), path
    assert f"{paths[1]} at 0: an entry has the unknown version 3" in printed.err
    assert any(line.startswith("version: 0 producerId: 5") for line in printed.out)


# ---- names


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_a_name_of_other_digits_is_not_a_segment_file(tmp_path: Path, suffix: str, dump: Dump) -> None:
    path = tmp_path / ("²" * 20 + suffix)
    path.write_bytes(b"")
    assert dump(path).err == [f"tidelog dump-log: {path}: not named as a segment file"]


# ---- text


def test_records_cannot_forge_lines(tmp_path: Path, dump: Dump) -> None:
    text = "a\n| offset: 9 forged\r\x1b[2K\x85\u2028z"
    headers = [(text, b"")]
    path = write_segment(tmp_path, [build_batch([Record(0, NOW_MS, text.encode(), text.encode(), headers)])])
    printed = dump("--print-data-log", path)
    assert len(printed.out) == 4
    escaped = r"a\n| offset: 9 forged\r\x1b[2K\x85\u2028z"
    assert printed.out[-1].endswith(f"headerKeys: [{escaped}] key: {escaped} payload: {escaped}")
    record = json.loads(dump("--print-data-log", "--json", path).out[-1])
    assert (record["key"], record["headerKeys"]) == (text, [text])


def test_other_text_is_printed_as_it_is(tmp_path: Path, dump: Dump) -> None:
    text = "é \\n \u00a0 \U0001f469\u200d\U0001f4bb"
    path = write_segment(tmp_path, [build_batch([Record(0, NOW_MS, b"\xff", text.encode())])])
    assert dump("--print-data-log", path).out[-1].endswith(f"key: \\xff payload: {text}")


def test_a_path_cannot_forge_lines(tmp_path: Path, dump: Dump) -> None:
    strange = tmp_path / "a\nb\udcff"
    strange.mkdir()
    path = write_segment(strange, [batch(1), b"rest"])
    printed = dump(path, strange / "none.log")
    assert (printed.code, len(printed.out), len(printed.err)) == (1, 5, 2)
    assert printed.out[0].endswith(f"a\\nb\\udcff/{LOG}")


def test_markers_and_missing_contents_have_kafkas_form(tmp_path: Path, dump: Dump) -> None:
    log = LogBench(str(tmp_path)).open()
    append(log, producer_batch(0, transactional=True))
    append(log, marker(7, commit=True, coordinator_epoch=3), AppendOrigin.COORDINATOR)
    append(log, build_batch([Record(0, NOW_MS, b"k", None), Record(1, NOW_MS, None, b"v")]))
    log.close()
    path = Path(log.directory) / LOG
    records = [line for line in dump("--print-data-log", path).out if line.startswith("| ")]
    assert records[1].endswith("headerKeys: [] endTxnMarker: COMMIT coordinatorEpoch: 3")
    assert records[2].endswith("headerKeys: [] key: k")
    assert records[3].endswith("headerKeys: [] payload: v")
    found = [json.loads(line) for line in dump("--print-data-log", "--json", path).out]
    marked = next(one for one in found if "endTxnMarker" in one)
    assert (marked["endTxnMarker"], marked["coordinatorEpoch"], marked["key"]) == ("COMMIT", 3, "\0\0\0\1")
    tombstone = next(one for one in found if one.get("key") == "k" and one["valueSize"] == -1)
    assert tombstone["payload"] is None


def test_another_control_record_is_named_by_its_type(tmp_path: Path, dump: Dump) -> None:
    options = BatchOptions(is_control=True)
    parts = [
        build_batch([Record(n, NOW_MS, struct.pack(">hh", 0, kind), b"")], options) for n, kind in enumerate((2, 99))
    ]
    printed = dump("--deep-iteration", write_segment(tmp_path, parts))
    types = [line.rpartition("controlType: ")[2] for line in printed.out if line.startswith("| ")]
    assert types == ["LEADER_CHANGE(2)", "UNKNOWN(99)"]
