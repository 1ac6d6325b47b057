"""One power loss: a point of the trace, and the pending effects that the disk has kept. Seeded; failures shrink.

A crash is a list of losses, each by itself: "this change of names is not there", "of this file the writes are lost,
torn, zeros, ...". Without losses it is the state that a killed process leaves. So a failing crash is made smaller by
taking losses away as long as it fails, and what is left says what has to be synced.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.power.disk import Content, Disk, apply

SECTOR = 512
MODES = ("none", "first", "zeros", "sectors", "pages")
"""A file's pending changes that are on the disk: none of them; the first few, the last of them torn; the size, with
zeros where the file grew; any sectors or pages of them at any of the sizes."""


@dataclass(frozen=True)
class Loss:
    """A change of names that is lost (``mode`` "name"), or what became of a file's pending changes."""

    number: int
    mode: str
    seed: int = 0


@dataclass(frozen=True)
class Crash:
    """A point of the trace, and the lost effects."""

    step: int
    ordered: bool
    losses: tuple[Loss, ...]

    def describe(self, disk: Disk) -> str:
        """Describe the crash in the message of a failed test."""
        lines = [f"power loss after step {self.step} ({'ordered' if self.ordered else 'loose'} names), lost:"]
        for loss in self.losses:
            if loss.mode == "name":
                lines.append(f"  {disk.names[loss.number].what}")
            else:
                content = disk.contents[loss.number]
                lines.append(
                    f"  contents of {disk.name_of(loss.number)}: {loss.mode} of {len(content.pending)} changes "
                    f"since {len(content.durable)} durable bytes (seed {loss.seed})"
                )
        return "\n".join(lines)

    def write(self, disk: Disk, target: Path) -> None:
        """Put the disk of this crash below ``target``; ``disk`` is the model at its step."""
        lost = {loss.number for loss in self.losses if loss.mode == "name"}
        kept = disk.without(lost, ordered=self.ordered)
        modes = {loss.number: loss for loss in self.losses if loss.mode != "name"}
        images = {number: image_of(disk.contents[number], modes.get(number)) for number in disk.pending_contents()}
        disk.write(target, kept, images)


def image_of(content: Content, loss: Loss | None) -> bytes:
    """Build the file as the disk has it."""
    new = bytearray(content.durable)
    sizes = [len(new)]
    for position, data in content.pending:
        apply(new, position, data)
        sizes.append(len(new))
    if loss is None:
        return bytes(new)
    if loss.mode == "none":
        return bytes(content.durable)
    chance = random.Random(loss.seed)
    if loss.mode == "first":
        return _first(content, chance)
    old = bytearray(content.durable)
    size = chance.choice(sizes) if loss.mode != "zeros" else len(new)
    for image in (old, new):
        apply(image, size, None)
    if loss.mode == "zeros":
        return bytes(old)
    return _mixed(old, new, SECTOR if loss.mode == "sectors" else 4096, chance)


def _first(content: Content, chance: random.Random) -> bytes:
    """Apply some of the changes, in order; of the last one only the first sectors."""
    image = bytearray(content.durable)
    count = chance.randrange(len(content.pending))
    for position, data in content.pending[:count]:
        apply(image, position, data)
    position, data = content.pending[count]
    if data is not None:
        whole = (position + chance.randrange(len(data) + 1)) // SECTOR * SECTOR
        apply(image, position, data[: max(whole - position, 0)])
    return bytes(image)


def _mixed(old: bytearray, new: bytearray, block: int, chance: random.Random) -> bytes:
    share = chance.choice((0.1, 0.5, 0.9))
    for begin in range(0, len(old), block):
        if chance.random() < share:
            old[begin : begin + block] = new[begin : begin + block]
    return bytes(old)


def draw(disk: Disk, step: int, chance: random.Random, *, loose: bool) -> Crash:
    """Draw any power loss at this point; ``disk`` is the model there. With ``loose`` half of them do not keep the order
    of names.
    """
    ordered = not loose or chance.random() < 0.5
    names = disk.pending_names(ordered=ordered)
    if ordered:
        lost = names[chance.choice((0, len(names), chance.randrange(len(names) + 1))) :]
    else:
        share = chance.choice((0.0, 0.1, 0.5, 1.0))
        lost = [index for index in names if chance.random() < share]
    losses = [Loss(index, "name") for index in lost]
    share = chance.choice((0.0, 0.2, 0.7, 1.0))
    mode = chance.choice((None, None, *MODES))
    losses += [
        Loss(number, mode or chance.choice(MODES), chance.randrange(1 << 30))
        for number in disk.pending_contents()
        if chance.random() < share
    ]
    return Crash(step, ordered, tuple(losses))


def smaller(crash: Crash, fails: Callable[[Crash], bool]) -> Crash:
    """Find the same failure with as few losses as can be: halves are taken away first, then one after another."""
    size = len(crash.losses)
    while size:
        size = (size + 1) // 2 if size > 1 else 1
        position = 0
        while position < len(crash.losses):
            rest = crash.losses[:position] + crash.losses[position + size :]
            if fails(candidate := replace(crash, losses=rest)):
                crash = candidate
            else:
                position += size
        if size == 1:
            break
    return crash
