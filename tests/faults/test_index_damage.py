"""Index files that are torn, truncated, missing or of another log, and a kill at any write: every record is found
afterwards."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.finding import catch_up, check_answers, fill, indexed_bench, indexer_of
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.lookup import Query, find_newest


def newest(directory: Path) -> Path:
    return sorted(path for path in directory.iterdir() if path.name[0] == "0")[-1]


def truncate(directory: Path) -> None:
    path = newest(directory)
    os.truncate(path, path.stat().st_size // 2)


def zero(directory: Path) -> None:
    path = newest(directory)
    path.write_bytes(bytes(path.stat().st_size))


def foreign(directory: Path) -> None:
    newest(directory).write_bytes(random.Random(1).randbytes(10_000))


def foreign_of_same_size(directory: Path) -> None:
    path = newest(directory)
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def missing(directory: Path) -> None:
    newest(directory).unlink()


def torn_checkpoint(directory: Path) -> None:
    os.truncate(directory / "index-checkpoint", 20)


def no_checkpoint(directory: Path) -> None:
    (directory / "index-checkpoint").unlink()


def stray_file(directory: Path) -> None:
    (directory / "00000000000000099999.keys").write_bytes(b"stray")


def gone(directory: Path) -> None:
    shutil.rmtree(directory)


DAMAGES = (truncate, zero, foreign, foreign_of_same_size, missing, torn_checkpoint, no_checkpoint, stray_file, gone)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_key_index_is_rebuilt(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(1), 100)
    indexer = indexer_of(log)
    indexer.checkpoint()
    del indexer
    damage(Path(log.directory, "keys"))
    check_answers(log, indexer_of(log), records)


@pytest.mark.parametrize(
    "damage", [truncate, zero, foreign_of_same_size, missing, torn_checkpoint, no_checkpoint, stray_file, gone]
)
def test_damaged_tag_index_is_rebuilt(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(1), 100)
    indexer = indexer_of(log)
    indexer.checkpoint()
    del indexer
    damage(Path(log.directory, "tags"))
    check_answers(log, indexer_of(log), records)


def test_a_chain_that_does_not_go_back_stops_the_look_up(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(1), 100)
    indexer = indexer_of(log)
    assert indexer.keys is not None
    file = indexer.keys.files[-1]
    for number in range(1, file.count):  # each entry its own predecessor
        os.pwrite(file._descriptor, number.to_bytes(4, "big"), file._position(number) + 16)
    with pytest.raises(IndexDamagedError):
        list(find_newest(log, indexer, Query(key=b"Aa")))
    indexer.rebuild()
    catch_up(indexer)
    check_answers(log, indexer, records)
    assert indexer.rebuilds == 1


def test_an_index_of_records_that_a_power_loss_took_is_rebuilt(tmp_path: Path) -> None:
    """The index was synced, the log was not; other records got the offsets before the indexer read them."""
    bench = indexed_bench(str(tmp_path), **{"segment.bytes": 1 << 20})
    log = bench.open()
    generator = random.Random(1)
    records = fill(log, generator, 30)
    size = Path(log.directory, f"{0:020d}.log").stat().st_size
    fill(log, generator, 5)
    indexer_of(log).checkpoint()
    log.close()
    os.truncate(Path(log.directory, f"{0:020d}.log"), size)
    log = bench.open()
    assert log.log_end_offset == records[-1].offset + 1
    records += fill(log, generator, 20)
    indexer = indexer_of(log)
    assert indexer.rebuilds == 2, "keys and tags"
    check_answers(log, indexer, records)


@pytest.mark.parametrize("seed", range(20))
def test_killed_at_any_byte_of_a_put(tmp_path: Path, seed: int) -> None:
    """A kill leaves all files as of the last checkpoint, then any prefix of the writes since, torn anywhere; and
    what a power loss leaves: any of the later pages, the others as they were."""
    generator = random.Random(seed)
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, generator, generator.randrange(10, 60))
    indexer = indexer_of(log)
    indexer.checkpoint()
    before = {path: path.read_bytes() for path in index_files(log.directory)}
    records += fill(log, generator, generator.randrange(1, 60))
    catch_up(indexer)
    after = {path: path.read_bytes() for path in index_files(log.directory)}
    del indexer
    for path, new in after.items():
        if path.name == "index-checkpoint":
            continue
        old = before.get(path, bytes(len(new)))
        block = generator.choice((1, 20, 512))
        mixed = bytearray(old)
        for at in range(0, len(new), block):
            if generator.random() < 0.5:
                mixed[at : at + block] = new[at : at + block]
        path.write_bytes(mixed)
    restarted = LogIndexer(log)
    restarted.configure()
    catch_up(restarted)
    check_answers(log, restarted, records)


def index_files(directory: str) -> list[Path]:
    return [path for name in ("keys", "tags") for path in Path(directory, name).iterdir()]
