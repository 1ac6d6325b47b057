"""Members of a share group over kills, loads and failed writes of the states: no record comes again after its confirmed
acknowledgement, and each record comes until then."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.broker.share.share_world import ShareMember, ShareWorld, partitions
from tidelog.broker.coordinator.share_state.coordinator import ShareCoordinator
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.share_fetch import ShareFetchResponse

STEPS = 60
ACCEPT, RELEASE, REJECT = 1, 2, 3


class Group:
    """A share group of up to three members that read one partition."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = ShareWorld(directory)
        self.world.configure("g", share_delivery_count_limit="10", share_record_lock_duration_ms="15000")
        self.world.topic("t")
        self.members: dict[str, ShareMember] = {}
        self.held: dict[str, list[int]] = {}
        self.finished: set[int] = set()
        """Offsets whose acceptance or rejection was confirmed."""
        self.possible: set[int] = set()
        """Offsets whose acceptance or rejection was sent, and not confirmed."""
        self.written = 0

    def member(self) -> ShareMember:
        name = self.chance.choice("mno")
        if name not in self.members:
            self.members[name] = self.world.member(member_id=name)
            self.held[name] = []
        return self.members[name]

    def write(self) -> None:
        count = self.chance.randrange(1, 6)
        self.world.append("t", *[b"v"] * count)
        self.written += count

    def fetch(self) -> None:
        member = self.member()
        answer = member.fetch(max_records=self.chance.randrange(1, 8), share_acquire_mode=1)
        self.deliver(member, answer)

    def deliver(self, member: ShareMember, answer: ShareFetchResponse) -> None:
        if answer.error_code:
            del self.members[member.member_id]  # its session is over
            return
        for data in partitions(answer):
            for run in data.acquired_records:
                offsets = range(run.first_offset, run.last_offset + 1)
                again = self.finished.intersection(offsets)
                assert not again, f"{again} are delivered again"
                self.held[member.member_id] += offsets

    def acknowledge(self) -> None:
        member = self.member()
        held = self.held[member.member_id]
        if not held or member.epoch == 0:
            return
        chosen = sorted(self.chance.sample(held, self.chance.randrange(1, len(held) + 1)))
        kinds = {offset: self.chance.choice([ACCEPT, ACCEPT, RELEASE, REJECT]) for offset in chosen}
        self.held[member.member_id] = [offset for offset in held if offset not in kinds]
        ended = {offset for offset, kind in kinds.items() if kind != RELEASE}
        self.possible |= ended
        answer = member.acknowledge(*((offset, offset, [kind]) for offset, kind in kinds.items()))
        if not answer.error_code and not any(
            data.error_code for topic in answer.responses for data in topic.partitions
        ):
            self.finished |= ended

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Let changes of states fail within this block."""

        def fail(*_: object) -> Deferred[None]:
            raise KafkaStorageError

        original = ShareCoordinator.write
        ShareCoordinator.write = fail  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            ShareCoordinator.write = original  # type: ignore[method-assign]

    def fail(self) -> None:
        with self.failing():
            self.chance.choice([self.acknowledge, self.wait, self.leave])()

    def wait(self) -> None:
        self.world.advance(self.chance.choice([100, 8_000, 16_000]))

    def leave(self) -> None:
        if self.members:
            name = self.chance.choice(sorted(self.members))
            context = self.members.pop(name).context
            if context.on_close is not None:  # it has had a session
                context.on_close()

    def drop(self) -> None:
        """Have the leader read the state again, as after another leader's term."""
        self.world.coordinators.share_groups.forget_group("g")

    def load(self) -> None:
        self.world.coordinators.share.runtime.unload()

    def kill(self) -> None:
        self.world = self.world.restarted()
        self.members.clear()

    def end(self) -> None:
        """Have a member accept everything that is left."""
        self.kill()
        seen: set[int] = set()
        for _ in range(self.written + 20):
            answer = self.member().fetch(max_records=500)
            seen.update(
                offset
                for data in partitions(answer)
                for run in data.acquired_records
                for offset in range(run.first_offset, run.last_offset + 1)
            )
            if seen | self.finished | self.possible >= set(range(self.written)):
                break
        assert not seen & self.finished
        assert seen | self.possible == set(range(self.written)) - self.finished | self.possible


@pytest.mark.parametrize("seed", range(12))
def test_confirmed_records_are_not_delivered_again(tmp_path: Path, seed: int) -> None:
    group = Group(tmp_path, seed)
    steps = [
        *[group.write] * 3, *[group.fetch] * 5, *[group.acknowledge] * 5, group.fail, group.wait, group.leave,
        group.drop, group.load, group.kill,
    ]  # fmt: skip
    for _ in range(STEPS):
        group.chance.choice(steps)()
    group.end()
