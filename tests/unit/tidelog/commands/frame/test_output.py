"""Numbers and tables in the output of commands."""

from __future__ import annotations

import pytest

from tidelog.client.admin.groups import Group
from tidelog.commands.frame.output import number_text, print_rows
from tidelog.commands.manage.group import print_group
from tidelog.commands.manage.metadata import text_lines

HOSTILE = "x\n\x1b[2Kbilling  Stable"
EMPTY = {
    "offset": 1, "epoch": 1, "timestamp": -1, "nextProducerId": 0, "features": {}, "controllers": [], "brokers": [],
    "topics": [], "configs": [], "quotas": [], "acls": [], "tokens": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "text"), [(1048576.0, "1048576"), (50.5, "50.5"), (0.1, "0.1"), (2.0**62, str(2**62)), (7, "7")]
)
def test_numbers_have_all_their_digits(number: float, text: str) -> None:
    assert number_text(number) == text


def test_a_name_cannot_look_like_another_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Clients choose the names of groups and their own ids, with control characters if they like."""
    print_rows(["group", "members"], [{"group": HOSTILE, "members": [HOSTILE, "b"]}])
    _, row = capsys.readouterr().out.splitlines()
    assert row.isprintable()
    assert row.startswith(r"x\n\x1b[2Kbilling  Stable  x\n")


def test_a_description_of_a_group_cannot_have_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A member of a classic group chooses the name of the assignor."""
    print_group(Group("g", "classic", "Stable", HOSTILE, [], []))
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.isprintable()
    assert rest == ["state: Stable, 0 members", "lag: 0"]


def test_metadata_cannot_look_like_other_lines() -> None:
    users = [{"name": HOSTILE, "mechanism": "SCRAM-SHA-256", "iterations": 4096}]
    lines = list(text_lines({**EMPTY, "users": users}))
    assert all(line.isprintable() for line in lines)
    assert lines[-1] == r"  x\n\x1b[2Kbilling  Stable  SCRAM-SHA-256  4096 iterations"
