"""Requests for all offsets of groups: each group is answered once, however often the request names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar


class AskedGroup(Protocol):
    """A group of OffsetFetch or DescribeShareGroupOffsets. Topics that are null ask for all offsets of it."""

    @property
    def group_id(self) -> str:
        """Name of the group."""

    @property
    def topics(self) -> Sequence[object] | None:
        """Topics that are asked of it, or None for all."""


Asked = TypeVar("Asked", bound=AskedGroup)


def leave_out_repetitions(groups: Iterable[Asked]) -> Iterator[Asked]:
    """Yield the groups without those whose offsets were all asked for before: a short request cannot ask for a
    huge response."""
    seen: set[str] = set()
    for group in groups:
        if group.topics is None:
            if group.group_id in seen:
                continue
            seen.add(group.group_id)
        yield group
