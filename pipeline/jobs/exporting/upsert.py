"""The files of a table before and after an upsert: the files that one commit removes, and those that it adds.

    staged files     a row for the latest record of each key, including deletes; later files of a partition override
                     earlier ones
    table files      a file stays if no staged row has one of its keys; otherwise another file replaces it, without the
                     rows of these keys

So a commit reads the keys of all table files, and rewrites the files that have a changed key. In a table without value
columns, the same commit merges small files of the same partition of the table. Files are never changed: a reader of an
earlier version still finds its files, until the table's maintenance removes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidelog.pipeline.export.latest import MergePlan, MergeResult, merge_files
from tidelog.pipeline.export.manifest import DATA, StagingRun
from tidelog.pipeline.jobs.exporting.plan import PartitionPlan
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Files below this size are merged, into files of up to this size.
SMALL_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file of the table. ``partition``: its partition of the table as text; only files of the same one may be
    merged."""

    path: str
    size: int
    partition: str = ""


@dataclass(slots=True)
class Change:
    """Difference between two versions: paths of removed files, and names and row counts of added staged files.

    The row counts are 0 for an Iceberg table without a merge, which does not need them.
    """

    removed: list[str] = field(default_factory=list)
    added: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Merger:
    """Runner of merges on Spark or in this process. ``groups``: whether small files may be merged into one."""

    spark: SparkSession | None
    progress: Progress
    groups: bool = True

    def merge(self, old: Iterable[OldFile], plans: Sequence[PartitionPlan], staged: StagingRun) -> Change:
        """Write the files that a commit adds into the staging directory, and return the change. Raises JobError."""
        folder = os.path.join(staged.path, DATA)
        groups = [[file.name for file in result.files] for plan in plans for result in plan.results]
        groups = [[os.path.join(folder, name) for name in group] for group in groups]
        every = tuple(path for group in groups for path in group)
        merges = [
            MergePlan(
                tuple(file.path for file in group), every, "", is_new=False, size=sum(file.size for file in group)
            )
            for group in (self._groups(old) if every else ())
        ]
        for number, group in enumerate(groups):
            later = tuple(path for after in groups[number + 1 :] for path in after)
            merges += [MergePlan((path,), later, "", is_new=True) for path in group]
        for number, merge in enumerate(merges):
            target = os.path.join(folder, f"latest-{number:06d}-{staged.run}.parquet")
            merges[number] = replace(merge, target=target, store=staged.store)
        tasks = [Task(os.path.basename(merge.target), merge.size, merge) for merge in merges]
        return _change(merges, run_tasks(self.spark, tasks, merge_files, self.progress))

    def _groups(self, old: Iterable[OldFile]) -> list[list[OldFile]]:
        return _group_small_files(old) if self.groups else [[file] for file in old]


def _group_small_files(files: Iterable[OldFile]) -> list[list[OldFile]]:
    """Group small files that may be merged; any other file is a group of its own."""
    groups: list[list[OldFile]] = []
    sizes: dict[int, int] = {}
    open_groups: dict[str, int] = {}
    for file in sorted(files, key=lambda file: file.path):
        number = open_groups.get(file.partition)
        if number is None or file.size >= SMALL_BYTES or sizes[number] + file.size > SMALL_BYTES:
            number = len(groups)
            groups.append([])
            sizes[number] = 0
            if file.size < SMALL_BYTES:
                open_groups[file.partition] = number
        groups[number].append(file)
        sizes[number] += file.size
    return groups


def _change(merges: Sequence[MergePlan], results: Sequence[MergeResult]) -> Change:
    change = Change()
    for merge, result in zip(merges, results, strict=True):
        if merge.is_new:
            change.added += [(os.path.basename(path), rows) for path, rows in result.stays]
        else:
            stays = {path for path, _ in result.stays}
            change.removed += [path for path in merge.paths if path not in stays]
        change.added += result.written
    return change
