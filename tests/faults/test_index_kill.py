"""A kill at every single byte that a put writes into the indices, and that the checkpoint after it writes.

    states     the files before, at each call that writes or reserves, and after the last one
    images     from each state to the next one byte by byte: a put that was killed there leaves that image
    restart    over each image: every record of the log is found, and nothing else

``test_index_damage`` has what a power loss leaves, where pages reach the disk in any order.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.finding import catch_up, check_answers, indexed_bench, indexer_of, use_reference
from tests.support.logs import NOW_MS, append
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.record_batch import Record, build_batch

Image = dict[str, bytes]
"""The files of both indices, by their path below the log's directory."""
KEYS = (b"Aa", b"BB", None, b"k1")
WATCHED = ("pwrite", "write", "posix_fallocate", "ftruncate", "replace", "rename")


def put_batch(log: UnifiedLog, number: int) -> list[Record]:
    """Append three records whose keys collide, one of them with a tag."""
    records = [
        Record(i, NOW_MS + 1000 * number + i, KEYS[(number + i) % len(KEYS)], b"%d" % number, tags)
        for i, tags in enumerate(((("kind", b"paid"),), (), (("kind", b"Aa"),)))
    ]
    first = append(log, build_batch(records)).first_offset
    return [record._replace(offset=first + record.offset) for record in records]


def image_of(log: UnifiedLog) -> Image:
    root = Path(log.directory)
    return {
        str(path.relative_to(root)): path.read_bytes() for name in ("keys", "tags") for path in (root / name).iterdir()
    }


def restore(log: UnifiedLog, image: Image) -> None:
    for name in ("keys", "tags"):
        shutil.rmtree(Path(log.directory, name), ignore_errors=True)
        Path(log.directory, name).mkdir()
    for name, content in image.items():
        Path(log.directory, name).write_bytes(content)


def states_of(log: UnifiedLog, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[Image]:
    """Return the files' contents at each step of ``work``."""
    states = [image_of(log)]

    def watched(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **named: object) -> object:
            states.append(image_of(log))
            result = call(*arguments, **named)
            states.append(image_of(log))
            return result

        return called

    with monkeypatch.context() as patch:
        use_reference(patch)  # compiled routines call pwrite unseen
        for name in WATCHED:
            patch.setattr(os, name, watched(getattr(os, name)))
        work()
    states.append(image_of(log))
    return states


def images_between(before: Image, after: Image) -> Iterator[Image]:
    """Yield the images between two states, a byte at a time: holes, bytes that change; then what is renamed or gone."""
    now = dict(before)
    for name, content in after.items():
        old = now.get(name, b"")
        if len(content) - len(old) > 0 and not any(content[len(old) :]):  # a hole: at once
            old = now[name] = old + bytes(len(content) - len(old))
            yield dict(now)
        for at in range(len(content)):
            if at >= len(old) or old[at] != content[at]:
                now[name] = content[: at + 1] + old[at + 1 :]
                yield dict(now)
    if now != after:
        yield dict(after)


def put_all(indexer: LogIndexer) -> None:
    """Index all records, as the indexer thread does."""
    catch_up(indexer)
    indexer.checkpoint()


@pytest.mark.parametrize("scenario", ["the first put", "beside others", "into the next files"])
def test_killed_at_every_byte_of_a_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    small = {"index.keys.slots": 3, "index.keys.entries": 12, "index.tag.entries": 17}
    log = indexed_bench(str(tmp_path), **small).open()
    records: list[Record] = []
    if scenario != "the first put":
        for number in range(4):
            records += put_batch(log, number)
    indexer = indexer_of(log)
    indexer.checkpoint()
    for number in range(4, 7 if scenario == "into the next files" else 5):
        records += put_batch(log, number)

    states = states_of(log, lambda: put_all(indexer), monkeypatch)
    assert indexer.keys is not None
    assert len(indexer.keys.files) == (2 if scenario == "into the next files" else 1)
    assert indexer.tags is not None
    assert len(indexer.tags.files) == len(indexer.keys.files)
    images = [image for before, after in pairwise(states) for image in images_between(before, after)]
    assert len(images) > 150, "slots, entries, headers, tags and checkpoints, byte by byte"
    for image in images:
        restore(log, image)
        restarted = LogIndexer(log)
        restarted.configure()
        catch_up(restarted)
        check_answers(log, restarted, records)
        del restarted
