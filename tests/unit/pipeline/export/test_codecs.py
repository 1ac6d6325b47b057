"""Codecs of an exported file: columns that zstd does not make smaller are stored uncompressed, and a file that grows
keeps its codecs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines import NOW_MS
from tidelog.pipeline.export.codecs import choose_codecs, codecs_of
from tidelog.pipeline.export.parquet import RowWriter
from tidelog.pipeline.options.columns import Columns

SCHEMA = Columns.default(headers=True).arrow_schema()
CHANCE = random.Random(20)
TEXT = b"the same words again and again, "


def rows(values: list[bytes | None], headers: list[bytes | None] | None = None) -> pa.Table:
    """Build records of a partition with these values, from offset 0 on; each has a header with one of ``headers``."""
    count = len(values)
    columns = {
        "key": [b"key-%d" % number for number in range(count)],
        "value": values,
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": range(count),
        "timestamp": [(NOW_MS + number) * 1000 for number in range(count)],
        "timestampType": [0] * count,
        "headers": [None] * count if headers is None else [[{"key": "trace", "value": one}] for one in headers],
    }
    return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}, SCHEMA)


def random_values(count: int, size: int) -> list[bytes | None]:
    return [CHANCE.randbytes(size) for _ in range(count)]


@pytest.mark.parametrize(
    ("values", "codec"),
    [
        (lambda: random_values(5000, 1000), "none"),
        (lambda: random_values(50_000, 100), "none"),
        (lambda: [TEXT * 30] * 5000, "zstd"),
        (
            lambda: random_values(200_000, 8),
            "zstd",
        ),  # the four bytes of length before each value get smaller
        (lambda: random_values(20, 1000), "zstd"),  # fewer bytes than EVIDENCE_BYTES
        (lambda: random_values(2, 3_000_000), "none"),
        (lambda: [None] * 1000, "zstd"),
        (lambda: [*random_values(500, 100), *[TEXT * 30] * 5000], "zstd"),  # the sample is from the middle
    ],
    ids=["1 kB", "100 B", "text", "8 B", "few", "large", "nulls", "text after little"],
)
def test_values_that_do_not_get_smaller_are_not_compressed(
    values: Callable[[], list[bytes | None]], codec: str
) -> None:
    found = choose_codecs(rows(values()))
    assert found.pop("value") == codec
    assert set(found.values()) == {"zstd"}


def test_the_values_of_headers_have_a_codec_of_their_own(tmp_path: Path) -> None:
    header = "headers.list.element.value"
    same = choose_codecs(rows([TEXT] * 5000, [CHANCE.randbytes(4000)] * 5000))
    assert set(same.values()) == {"zstd"}, "the same header in all records"
    part = rows([TEXT] * 5000, random_values(5000, 1000))
    assert write(tmp_path / "file", [part])
    with pq.ParquetFile(tmp_path / "file") as file:
        written = codecs_of(file.metadata.row_group(0))
        assert file.read().column("headers").combine_chunks() == part.column("headers").combine_chunks()
    assert written.pop(header) == "none"
    assert set(written.values()) == {"zstd"}


def write(path: Path, parts: list[pa.Table], earlier: Path | None = None) -> bool:
    """Write a file of some parts, after the rows of an earlier file; return False if that one cannot grow."""
    writer = RowWriter(str(path), SCHEMA, {})
    if earlier is not None and not writer.begin_with(str(earlier)):
        writer.give_up()
        return False
    for part in parts:
        writer.write(part.to_batches())
    writer.close()
    return True


@pytest.mark.parametrize("first", ["random", "text"])
def test_a_file_that_grows_keeps_its_codecs(tmp_path: Path, first: str) -> None:
    """The codecs suit the rows of the first row group, whatever is added."""
    kinds = {"random": rows(random_values(500, 1000)), "text": rows([TEXT * 30] * 500)}
    second = next(kind for name, kind in kinds.items() if name != first)
    assert write(tmp_path / "small", [kinds[first]])
    assert write(tmp_path / "grown", [second], tmp_path / "small")
    begin = (tmp_path / "small").read_bytes()
    assert (tmp_path / "grown").read_bytes()[: len(begin)] == begin
    with pq.ParquetFile(tmp_path / "grown") as file:
        codecs = [codecs_of(file.metadata.row_group(number)) for number in range(2)]
        assert codecs[0] == codecs[1]
        assert codecs[0]["value"] == ("none" if first == "random" else "zstd")
        assert (
            file.read().column("value").combine_chunks()
            == pa.concat_tables([kinds[first], second]).column("value").combine_chunks()
        )


def test_a_file_whose_columns_were_all_compressed_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is from before each column had its own codec."""
    part = rows(random_values(500, 1000))
    with monkeypatch.context() as patch:
        patch.setattr("tidelog.pipeline.export.codecs.MIN_SAVING", -1.0)
        assert write(tmp_path / "small", [part])
    assert write(tmp_path / "grown", [part], tmp_path / "small")
    with pq.ParquetFile(tmp_path / "grown") as file:
        assert [codecs_of(file.metadata.row_group(number))["value"] for number in range(2)] == ["zstd", "zstd"]
