"""Reading past damage: records whose time does not fit a column, and damaged batches near them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import tidelog
from tests.support.pipelines import NOW_MS, DataDirectory
from tidelog.protocol.record.record_batch import Record, build_batch

BATCHES = 12


@pytest.mark.parametrize("strange", [2, 6, 10])
@pytest.mark.parametrize("damaged_byte", [70, 16], ids=["record", "magic"])
def test_a_strange_time_and_damage_in_one_segment(tmp_path: Path, strange: int, damaged_byte: int) -> None:
    """Damage after such a time ended the read with an error, and so did such a time shortly before damage."""
    data = DataDirectory(tmp_path / "data")
    data.log("t")
    batches = [
        build_batch([Record(number, (1 << 62) if number == strange else NOW_MS, b"k", b"value")])
        for number in range(BATCHES + 1)
    ]
    damaged = 8 if strange == 6 else 6
    batches[damaged][damaged_byte] ^= 0x40
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches[:-1]))
    (data.path / "t-0" / f"{BATCHES:020d}.log").write_bytes(batches[-1])
    found = tidelog.scan(data.path, "t", columns=["offset", "timestamp"], skip_damage=True).read_all()
    # Without an index, nothing shows where the next batch begins after an impossible header.
    lost = {strange, damaged} if damaged_byte == 70 else {strange, *range(damaged, BATCHES)}
    assert found.column("offset").to_pylist() == [number for number in range(BATCHES + 1) if number not in lost]
    data.close()
