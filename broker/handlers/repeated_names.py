"""Topic names of a request that changes topics: a repeated name is answered once, with an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidelog.protocol.errors import InvalidRequestError


class RepeatedNames:
    """Count of each name in a request. The count becomes 0 once the error of a repeated name was raised."""

    __slots__ = ("_counts",)

    def __init__(self, names: Iterable[str]) -> None:
        self._counts = Counter(names)

    def is_answered(self, name: str) -> bool:
        """Return whether the error for a repeated name was raised already."""
        return self._counts[name] == 0

    def check(self, name: str) -> None:
        """Raise InvalidRequestError for a repeated name; it counts as answered from then on."""
        if self._counts[name] > 1:
            self._counts[name] = 0
            raise InvalidRequestError("Duplicate topic name.")
