"""The command on a saved page."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cleaner, saving
from benchmarks.saving import command_of


def test_the_command_repeats_the_run_with_all_its_options() -> None:
    """``--rounds`` and ``--produce-records`` of benchmarks.find were missing, and six benchmarks named no option."""
    options = ["--records", "3000000", "--save", "--rounds", "2", "--produce-records", "1000", "--only", "look-up"]
    expected = "python -m benchmarks.find --records 3000000 --rounds 2 --produce-records 1000 --only look-up"
    assert command_of("find", options) == expected


def test_options_are_those_of_the_process() -> None:
    script = "from benchmarks.saving import command_of; print(command_of('groups'))"
    done = subprocess.run([sys.executable, "-c", script, "--rounds", "2"], capture_output=True, text=True, check=True)
    assert done.stdout == "python -m benchmarks.groups --rounds 2\n"


def test_a_page_of_the_cleaner_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "RESULTS.md"
    saved.write_text("# Results\n")
    monkeypatch.setattr(saving, "RESULTS", saved)
    monkeypatch.setattr(cleaner, "require_compiled", lambda: None)
    monkeypatch.setattr(cleaner, "measure_latency", lambda *_: {"without": [1.0, 2.0]})
    monkeypatch.setattr(sys, "argv", ["benchmarks/cleaner.py", "--latency", "--save"])
    handler = signal.getsignal(signal.SIGINT)
    assert cleaner.main(None) == 0
    signal.signal(signal.SIGINT, handler)
    assert "`python -m benchmarks.cleaner --latency`. Commit " in saved.read_text()
