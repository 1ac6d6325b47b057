"""Sections of the results: their commands, and a failed command, which becomes text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks import sections
from benchmarks.rows import KAFKA
from benchmarks.sections import SECTIONS, command, run_section


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_is_a_program(name: str) -> None:
    assert importlib.util.find_spec(f"benchmarks.{name}") is not None
    assert command(name, KAFKA, quick=False) == [sys.executable, "-m", f"benchmarks.{name}"]


def test_commands_get_the_arguments_of_the_run() -> None:
    assert command("fsync", "none", quick=True)[3:] == ["--seconds", "1", "--no-kafka"]


@pytest.mark.parametrize("name", SECTIONS)
def test_without_a_rival_no_section_starts_kafka(name: str) -> None:
    program = (Path(sections.__file__).parent / f"{name}.py").read_text()
    assert ("--no-kafka" in command(name, "none", quick=False)) == ('"--no-kafka"' in program)


def test_the_output_of_a_section_is_kept() -> None:
    assert run_section([sys.executable, "-c", "print('| a |')"]).endswith("\n\n| a |")


def test_why_a_section_failed_is_kept() -> None:
    text = run_section([sys.executable, "-c", "raise SystemExit('no disk')"])
    assert "failed with 1" in text
    assert text.endswith("no disk")
