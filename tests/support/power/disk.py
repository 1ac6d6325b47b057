"""The model of a disk at a point of a trace: its durable contents, and every effect that is still pending.

Contents   a write is durable once a sync of the file that began after the write has ended. Later writes may be on the
           disk or not, completely or in parts, or be zeros where the file grew.
Names      a change of a directory is durable once a sync of the directory that began after the change has ended. Of
           later changes the first ones are kept, up to some time (``ordered``: file systems with one journal), or any
           of them (``loose``: what POSIX allows), but never a change without the earlier ones of the same file or name.
           A directory's own name belongs to its parent.

A sync of a file makes no name durable, and a rename no content: stricter than ext4, on purpose.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.power.trace import Step

ROOT = 0
Slot = tuple[int, str]
"""A directory's number and a name in it."""


@dataclass
class Content:
    """A file's bytes: the durable ones, and the writes (position, data) and sizes (size, None) since, in order."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    settled: int = 0
    """Number of changes made durable so far."""

    def settle(self, changes: int) -> None:
        """Make the first ``changes`` changes since the file was created durable."""
        count = max(changes - self.settled, 0)
        for position, data in self.pending[:count]:
            apply(self.durable, position, data)
        del self.pending[:count]
        self.settled += count


def apply(content: bytearray, position: int, data: bytes | None) -> None:
    """Write ``data`` at ``position``, or set the size."""
    size = position if data is None else position + len(data)
    if data is None:
        del content[size:]
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if data is not None:
        content[position:size] = data


@dataclass
class NameChange:
    """One change of directories: the file or directory of each slot after it. ``what`` describes it in failures."""

    slots: dict[Slot, int | None]
    what: str
    durable: bool = False

    @property
    def touched(self) -> set[object]:
        """The slots and files of the change; changes that share one keep their order."""
        return {*self.slots, *(number for number in self.slots.values() if number is not None)}


class Disk:
    """The model; ``step`` is called with each record of a trace."""

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.directories: set[int] = {ROOT}
        self.names: list[NameChange] = []
        self._seen: dict[Slot, int] = {}
        self._numbers: dict[int, int] = {}
        self._syncs: dict[int, tuple[dict[int, int], int]] = {}
        self._last = ROOT

    # ---- the records of a trace

    def step(self, step: Step) -> None:
        """Apply one record of the trace."""
        match step.operation:
            case "C":
                self._numbers[step.inode] = number = self._new_number()
                self.contents[number] = Content()
                self._change(step, {self._slot(step.path): number})
            case "W" | "T":
                content = self.contents.get(self._numbers.get(step.inode, -1))
                if content is not None:
                    content.pending.append((step.number, step.data if step.operation == "W" else None))
            case "B":
                counts = {number: c.settled + len(c.pending) for number, c in self.contents.items()}
                self._syncs[step.number] = counts, len(self.names)
            case "S":
                counts, _ = self._syncs.pop(step.number)
                number = self._numbers.get(step.inode, -1)
                if number in counts:
                    self.contents[number].settle(counts[number])
            case "D":
                self._settle_names(self._find(step.path), self._syncs.pop(step.number)[1])
            case _:
                self._step_of_names(step)

    def _step_of_names(self, step: Step) -> None:
        match step.operation:
            case "M":
                number = self._new_number()
                self.directories.add(number)
                self._change(step, {self._slot(step.path): number})
            case "R":
                old = self._slot(step.path)
                self._change(step, {old: None, self._slot(step.other): self._seen[old]})
            case "L":
                self._change(step, {self._slot(step.other): self._seen[self._slot(step.path)]})
            case "U" | "X":
                self._change(step, {self._slot(step.path): None})

    def _new_number(self) -> int:
        self._last += 1
        return self._last

    def _find(self, path: str) -> int | None:
        number: int | None = ROOT
        for name in filter(None, path.split("/")):
            number = None if number is None else self._seen.get((number, name))
        return number

    def _slot(self, path: str) -> Slot:
        parent = self._find(os.path.dirname(path))
        assert parent is not None, f"{path} has no directory: the recorder missed something"
        return parent, os.path.basename(path)

    def _change(self, step: Step, slots: dict[Slot, int | None]) -> None:
        what = {"C": "create", "M": "mkdir", "R": "rename", "L": "link", "U": "unlink", "X": "rmdir"}[step.operation]
        names = step.path if step.other == step.path else f"{step.path} -> {step.other}"
        self.names.append(NameChange(slots, f"{what} {names}"))
        for slot, number in slots.items():
            if number is None:
                self._seen.pop(slot, None)
            else:
                self._seen[slot] = number

    def _settle_names(self, directory: int | None, count: int) -> None:
        for change in self.names[:count]:
            if not change.durable and any(parent == directory for parent, _ in change.slots):
                change.durable = True

    # ---- the state at a power loss

    def pending_contents(self) -> list[int]:
        """List the files with changes that are not durable."""
        return [number for number, content in self.contents.items() if content.pending]

    def pending_names(self, *, ordered: bool) -> list[int]:
        """List the changes of names that may be lost, in order: with ``ordered`` none before a durable one."""
        pending = [index for index, change in enumerate(self.names) if not change.durable]
        if ordered:
            last = max((index for index, change in enumerate(self.names) if change.durable), default=-1)
            return [index for index in pending if index > last]
        kept = self._kept_with({index for index, change in enumerate(self.names) if change.durable})
        return [index for index in pending if index not in kept]

    def _kept_with(self, kept: set[int]) -> set[int]:
        """Return ``kept`` and the changes that must be kept with them: earlier ones of the same files and names."""
        kept, touched = set(kept), set[object]()
        for index in reversed(range(len(self.names))):
            change = self.names[index]
            if index in kept or not touched.isdisjoint(change.touched):
                kept.add(index)
                touched |= change.touched
        return kept

    def without(self, lost: Iterable[int], *, ordered: bool) -> set[int]:
        """Return the changes of names that are kept when ``lost`` are lost. All later ones are lost as well, or if not
        ``ordered`` the later ones of the same files and names.
        """
        gone, touched = set(lost), set[object]()
        if ordered:
            return set(range(min(gone, default=len(self.names))))
        for index, change in enumerate(self.names):
            if not change.durable and (index in gone or not touched.isdisjoint(change.touched)):
                gone.add(index)
                touched |= change.touched
        return set(range(len(self.names))) - gone

    def write(self, target: Path, kept: set[int], images: dict[int, bytes]) -> None:
        """Write a crashed disk below ``target``: the names after the changes ``kept``, ``images`` of changed files."""
        slots: dict[Slot, int] = {}
        for index in sorted(kept):
            for slot, number in self.names[index].slots.items():
                if number is None:
                    slots.pop(slot, None)
                else:
                    slots[slot] = number
        below: dict[int, list[tuple[str, int]]] = {}
        for (parent, name), number in slots.items():
            below.setdefault(parent, []).append((name, number))
        self._write_directory(target, ROOT, below, images)

    def _write_directory(
        self, target: Path, directory: int, below: dict[int, list[tuple[str, int]]], images: dict[int, bytes]
    ) -> None:
        target.mkdir(exist_ok=True)
        for name, number in below.get(directory, ()):
            if number in self.directories:
                self._write_directory(target / name, number, below, images)
            else:
                image = images.get(number)
                (target / name).write_bytes(self.contents[number].durable if image is None else image)

    def name_of(self, number: int) -> str:
        """Return the file's current path, for messages."""
        for (parent, name), found in self._seen.items():
            if found == number:
                return name if parent == ROOT else f"{self.name_of(parent)}/{name}"
        return f"file {number}, which has no name any more"
