"""Segment files as a reader beside a live broker sees them: a listing of one moment.

The broker renames files meanwhile: retention and the cleaner give old files the ending ``.deleted``. The cleaner's new
files go from ``.cleaned`` to ``.swap`` to no ending (``tidelog.log.retention`` draws the steps). A listing in the
middle of that would miss a segment, and that looks like a gap that compaction left. So a listing counts only when the
next one is equal and no swap is under way; a swap that does not end (its broker died) is read as the broker's next
start would finish or undo it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files.batch_walk import next_offset_of
from tidelog.pipeline.files.storage import names_in

_LOG_NAME = re.compile(r"([0-9]{20})\.log(\.swap|\.cleaned)?")
#: How long a swap may take before its broker counts as dead: renames of a few files.
SWAP_PATIENCE_S = 1.0
_POLL_S = 0.002


class SegmentFile(NamedTuple):
    """A ``.log`` file of a listing: its base offset and path. Its index files have the same ending, such as
    ``.swap``."""

    base_offset: int
    path: str

    def sibling(self, suffix: str) -> str:
        """Return the path of the segment's file with ``suffix`` (``.index`` and so on)."""
        stem, _, ending = self.path.rpartition(".log")
        return stem + suffix + ending


def list_segments(directory: str) -> list[SegmentFile]:
    """List the segments of a partition directory, by base offset, at one moment.

    Waits up to ``SWAP_PATIENCE_S`` for a swap of the cleaner to end. Raises FileNotFoundError, and PipelineError when
    the directory or a file cannot be read.
    """
    deadline = time.monotonic() + SWAP_PATIENCE_S
    names = _names(directory)
    while True:
        again = _names(directory)
        is_swapping = any(name.endswith(".swap") for name in again)
        if again == names and (not is_swapping or time.monotonic() > deadline):
            return _resolve_swaps(directory, names)
        names = again
        if is_swapping:
            time.sleep(_POLL_S)


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in names_in(directory) if _LOG_NAME.fullmatch(name))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PipelineError(f"{directory} cannot be listed: {error.strerror}") from error


def _resolve_swaps(directory: str, names: Sequence[str]) -> list[SegmentFile]:
    """Return the segments that a start of the broker would leave: a swap is completed, or undone while a ``.cleaned``
    file is there."""
    plain = [_file(directory, name) for name in names if name.endswith(".log")]
    swapped = [_file(directory, name) for name in names if name.endswith(".swap")]
    if not swapped or any(name.endswith(".cleaned") for name in names):
        return plain
    spans = [(file.base_offset, next_offset_of(file.path, file.base_offset)) for file in swapped]
    kept = [file for file in plain if not any(base <= file.base_offset < end for base, end in spans)]
    return sorted(kept + swapped)


def _file(directory: str, name: str) -> SegmentFile:
    return SegmentFile(int(name[:20]), os.path.join(directory, name))
