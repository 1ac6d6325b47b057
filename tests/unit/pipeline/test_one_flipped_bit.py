"""One flipped bit in a batch header: audit, check and export report the same lost offsets."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, say_cleaned, write
from tidelog.log.check import check_directory
from tidelog.log.segment.batch_scan import BatchHeader, iter_headers
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.reports.audit_report import findings
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record, build_batch

pq = pytest.importorskip("pyarrow.parquet")

ROUNDS = int(os.environ.get("TIDELOG_FLIP_ROUNDS", "25"))
#: Bytes of a header: offset, size, leader epoch, magic, checksum, and what the checksum covers.
OFFSET, SIZE, EPOCH, COVERED = range(8), range(8, 12), range(12, 16), range(16, 61)
LOST = re.compile(r"offsets (\d+) to (\d+) are lost")


@dataclass
class Place:
    """A batch, and whether another one follows it in its segment."""

    path: str
    header: BatchHeader
    has_next: bool


def write_log(data: DataDirectory, chance: random.Random) -> None:
    """Write batches of many sizes, and several of the same size, so that a wrong size may lead to another batch."""
    is_even = chance.random() < 0.5
    for number in range(60):
        size = 100 if is_even else chance.randrange(300)
        records = [
            Record(i, NOW_MS + number, b"key", bytes(size)) for i in range(1 if is_even else chance.randrange(1, 5))
        ]
        write(data.log("t"), records)
    data.close()


def places(directory: Path) -> list[Place]:
    found = []
    for segment in list_segments(str(directory)):
        with OpenSegment(segment.path) as file:
            headers = list(iter_headers(file, 0, file.size))
        found += [Place(segment.path, header, number + 1 < len(headers)) for number, header in enumerate(headers)]
    return found


def flip(place: Place, byte: int, bit: int) -> None:
    data = bytearray(Path(place.path).read_bytes())
    data[place.header.position + byte] ^= 1 << bit
    Path(place.path).write_bytes(data)


def offsets_in(lines: Iterable[str]) -> set[int]:
    return {o for line in lines for low, high in LOST.findall(line) for o in range(int(low), int(high) + 1)}


def lost_to_audit(data: DataDirectory) -> set[int]:
    result = audit(None, AuditRequest(data.source()))
    return offsets_in(line for partition in result.partitions for line in findings(partition))


def lost_to_check(data: DataDirectory) -> set[int]:
    return offsets_in(str(finding) for finding in check_directory(OsFileSystem(), str(data.path / "t-0")))


def lost_to_export(data: DataDirectory, table: Path) -> tuple[set[int], set[int]]:
    """Return the offsets that an export reports as lost, and those with a row."""
    result = export(None, ExportRequest(data.source(), str(table), fail_on_data_loss=False))
    lost = {o for low, high in result.manifest.topics["t"].partitions[0].lost for o in range(low, high)}
    letters = [
        row["reason"] for path in (table / "dead-letter").glob("*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    rows = {
        offset for path in (table / "data").glob("*.parquet") for offset in pq.read_table(path)["offset"].to_pylist()
    }
    return lost | offsets_in(letters), rows


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("field", [SIZE, COVERED, OFFSET], ids=["size", "covered", "offset"])
def test_audit_check_and_export_lose_the_same_offsets(tmp_path: Path, field: range, seed: int) -> None:
    chance = random.Random(seed)
    data = DataDirectory(tmp_path / "data")
    write_log(data, chance)
    batches = places(data.path / "t-0")
    everything = {o for place in batches for o in range(place.header.base_offset, place.header.last_offset + 1)}
    # The end of the newest segment looks like a write under way, and no batch must follow it.
    place = chance.choice([place for place in batches[:-20] if place.has_next])
    byte, bit = chance.choice(field), chance.randrange(8)
    flip(place, byte, bit)
    lost, rows = lost_to_export(data, tmp_path / "table")
    what = (place.header.base_offset, byte, bit)
    assert rows == everything - lost, what
    assert lost, what
    assert lost_to_audit(data) == lost, what
    assert lost_to_check(data) == lost, what


def test_a_size_that_leads_to_the_next_batch_but_one_loses_one(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data", index_interval_bytes=1)
    for number in range(12):
        write(data.log("t"), [Record(0, NOW_MS + number, None, bytes(256 - 61 - 9))])
    data.close()
    place = places(data.path / "t-0")[3]
    assert place.header.size % 2 == 0
    data_bytes = bytearray(Path(place.path).read_bytes())
    start = place.header.position
    data_bytes[start + 8 : start + 12] = (2 * place.header.size - 12).to_bytes(4, "big")
    Path(place.path).write_bytes(data_bytes)
    lost, rows = lost_to_export(data, tmp_path / "table")
    assert (lost, len(rows)) == ({3}, 11)
    assert lost_to_audit(data) == lost_to_check(data) == lost


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 6, 20, 1 << 40])
@pytest.mark.parametrize("cleaned", [0, 1 << 41])
def test_a_wrong_offset_of_any_format_loses_its_own_records(
    tmp_path: Path, magic: int, offset: int, cleaned: int
) -> None:
    """A message of magic 1 whose offset jumps ahead was reported with the messages after it, and read with its wrong
    offset."""
    data = DataDirectory(tmp_path / "data")
    data.log("t")
    data.close()
    if cleaned:
        say_cleaned(data.path, cleaned)
    groups = [[Record(n, NOW_MS, b"key", b"value") for n in (first, first + 1)] for first in range(0, 12, 2)]
    options = MessageSetOptions(magic, 0)
    batches = [bytes(build_batch(group) if magic == 2 else build_message_set(group, options)) for group in groups]
    size = len(batches[0])
    content = bytearray(b"".join(batches))
    content[2 * size : 2 * size + 8] = offset.to_bytes(8, "big")
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(content)
    (data.path / "t-0" / f"{12:020d}.log").write_bytes(build_batch([Record(12, NOW_MS, b"key", b"value")]))
    lost, rows = lost_to_export(data, tmp_path / "table")
    wanted = {4, 5} if magic == 2 else {4}
    assert rows == set(range(13)) - wanted
    assert lost == lost_to_check(data) == wanted
    assert lost_to_audit(data) == wanted


def test_the_epoch_of_a_batch_is_no_matter_of_its_records(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    write_log(data, random.Random(1))
    place = places(data.path / "t-0")[5]
    flip(place, EPOCH[-1], 0)
    lost, _ = lost_to_export(data, tmp_path / "table")
    assert lost == lost_to_audit(data) == lost_to_check(data) == set()
