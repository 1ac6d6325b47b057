"""docs/command-line.md is what the commands declare."""

from __future__ import annotations

from pathlib import Path

from tidelog.command_page import page
from tidelog.commands.table import COMMANDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"


def test_the_page_is_generated_from_the_commands() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python -m tidelog.command_page > docs/command-line.md"


def test_every_command_has_its_section() -> None:
    text = page()
    for name in COMMANDS:
        assert f"\n## tidelog {name}\n" in text
    assert "\n### tidelog topic create\n" in text
    assert "| `-p, --partitions N` | default: the broker's num.partitions" in text
