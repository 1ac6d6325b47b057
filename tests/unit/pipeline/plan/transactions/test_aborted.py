"""Entries of transaction indices that a broker renames and deletes while they are read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.pipelines import DataDirectory
from tests.support.transactions import indices, write_transactions
from tidelog.pipeline.files import sources
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.storage import names_in
from tidelog.pipeline.plan.transactions import aborted
from tidelog.pipeline.plan.transactions.aborted import aborted_transactions

pytest.importorskip("pyarrow")

Steps = list[Callable[[], object]]
SEEDS = range(20)


def deletion(directory: Path) -> Steps:
    """Return the renames by which retention or a truncation deletes all segments."""
    return [partial(path.rename, f"{path}.deleted") for path in indices(directory)]


def swap(directory: Path) -> Steps:
    """Return the renames by which a cleaner replaces all segments by one; the new index has the entries of all."""
    old = indices(directory)
    new = old[0].with_suffix(".txnindex.cleaned")
    whole = b"".join(path.read_bytes() for path in old)
    return [
        partial(new.write_bytes, whole),
        partial(new.rename, new.with_suffix(".swap")),
        *deletion(directory),
        partial(new.with_suffix(".swap").rename, old[0]),
        *[Path(f"{path}.deleted").unlink for path in old],
    ]


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Directory of a log whose segments have transaction indices."""
    data = DataDirectory(tmp_path / "data")
    write_transactions(data.log("t"), random.Random(0))
    data.close()
    directory = data.path / "t-0"
    assert len(indices(directory)) > 2
    return directory


def interleave(patch: pytest.MonkeyPatch, steps: Iterator[Callable[[], object]], chance: random.Random) -> None:
    """Let each listing and each opening of a file by this reader come after some of the steps."""
    open_source = sources.open_source

    def some_steps() -> None:
        while chance.random() < 0.4 and (step := next(steps, None)) is not None:
            step()

    def list_late(directory: str) -> list[str]:
        some_steps()
        return names_in(directory)

    def open_late(path: str, count: ReadCount) -> object:
        some_steps()
        return open_source(path, count)

    patch.setattr(aborted, "names_in", list_late)
    patch.setattr(sources, "open_source", open_late)


@pytest.mark.parametrize("change", [deletion, swap], ids=lambda change: change.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_index_that_is_renamed_meanwhile_is_read(
    closed: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Steps], seed: int
) -> None:
    """Aborted records counted as committed, because a file that was renamed counted as one without entries."""
    expected = aborted_transactions(str(closed), 0, 2**63 - 1)
    assert expected
    interleave(monkeypatch, iter(change(closed)), random.Random(seed))
    monkeypatch.setattr(aborted, "_PAUSE_S", 0)
    assert aborted_transactions(str(closed), 0, 2**63 - 1) == expected


def test_indices_that_are_renamed_again_and_again_are_not_taken_for_empty(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aborted, "names_in", lambda path: [*names_in(path), f"{7:020d}.txnindex"])
    with pytest.raises(FileNotFoundError, match=r"t-0: its \.txnindex files were renamed"):
        aborted_transactions(str(closed), 0, 2**63 - 1)
