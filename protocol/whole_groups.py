"""Requests for all offsets of groups: each group is answered once, however often it is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar


class AskedGroup(Protocol):
    """A group in a request of OffsetFetch or DescribeShareGroupOffsets."""

    @property
    def group_id(self) -> str:
        """Name of the group."""

    @property
    def topics(self) -> Sequence[object] | None:
        """Requested topics, or None for all offsets of the group."""


Asked = TypeVar("Asked", bound=AskedGroup)


def leave_out_repetitions(groups: Iterable[Asked]) -> Iterator[Asked]:
    """Yield the groups. One that is asked for all its offsets is yielded once, however often it is named: a short
    request must not get a huge response.
    """
    seen: set[str] = set()
    for group in groups:
        if group.topics is None:
            if group.group_id in seen:
                continue
            seen.add(group.group_id)
        yield group
