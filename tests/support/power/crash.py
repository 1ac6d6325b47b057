"""One power loss: a point of the trace, and the pending effects that the disk has lost. Drawn from a seed, and shrunk.

A crash is a list of independent losses: a change of names is lost, or a file's writes are lost, torn, zeros, and so on.
Without losses it is the state that a killed process leaves. A failing crash is shrunk: losses are removed as long as it
still fails. The remaining losses show which effects have to be synced.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.power.disk import Content, Disk, apply

SECTOR = 512
MODES = ("none", "first", "zeros", "sectors", "pages")
"""What a disk keeps of a file's pending changes: nothing; the first few, of which the last is torn; only the size, with
zeros where the file grew; any sectors or pages of them, with any of the file's sizes since."""


@dataclass(frozen=True)
class Loss:
    """A lost change of names (``mode`` "name"), or the loss of a file's pending changes (a mode of MODES)."""

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
        """Write the files that this crash leaves below ``target``; ``disk`` is the model at the crash's step."""
        lost = {loss.number for loss in self.losses if loss.mode == "name"}
        kept = disk.without(lost, ordered=self.ordered)
        modes = {loss.number: loss for loss in self.losses if loss.mode != "name"}
        images = {number: image_of(disk.contents[number], modes.get(number)) for number in disk.pending_contents()}
        disk.write(target, kept, images)


def image_of(content: Content, loss: Loss | None) -> bytes:
    """Build the bytes of a file after a loss; None: all its pending changes were kept."""
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
        torn_at = (position + chance.randrange(len(data) + 1)) // SECTOR * SECTOR
        apply(image, position, data[: max(torn_at - position, 0)])
    return bytes(image)


def _mixed(old: bytearray, new: bytearray, block: int, chance: random.Random) -> bytes:
    share = chance.choice((0.1, 0.5, 0.9))
    for begin in range(0, len(old), block):
        if chance.random() < share:
            old[begin : begin + block] = new[begin : begin + block]
    return bytes(old)


def draw(disk: Disk, step: int, chance: random.Random, *, loose: bool) -> Crash:
    """Draw a power loss at a step; ``disk`` is the model at this step. With ``loose`` half of the crashes do not keep
    the order of changes of names.
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
    """Remove losses from a failing crash as long as it still fails: first halves of them, then one after another."""
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
