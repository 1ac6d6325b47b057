"""The offsets that ``tidelog group reset`` commits."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.client.admin import offsets
from tidelog.commands.manage.group import Target, new_offsets

PLACE = ("orders", 0)
NONE = Target(False, False, False, None, None, None)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(NONE._replace(to_current=True), 2), (NONE._replace(shift_by=1), 5), (NONE._replace(to_offset=99), 9)],
)
def test_only_current_offsets_stay_outside_of_the_log(
    wanted: Target, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention has deleted the records up to offset 5; 2 is committed."""
    monkeypatch.setattr(offsets, "log_starts", lambda _cluster, partitions: dict.fromkeys(partitions, 5))
    monkeypatch.setattr(offsets, "log_ends", lambda _cluster, partitions: dict.fromkeys(partitions, 9))
    cluster: Any = None
    assert new_offsets(cluster, [PLACE], {PLACE: 2}, wanted) == {PLACE: expected}
