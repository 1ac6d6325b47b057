"""Terminal sessions of README.md and docs/, run unchanged: the output is the one on the page.

``TIDELOG_RECORD=1`` writes the output of this run into the pages, and the recording that asciinema plays.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.session import Step, build_recording, mask_times, run_steps, steps_of, text_of_recording

ROOT = Path(__file__).resolve().parents[2]
FIRST_STEPS = ROOT / "docs" / "first-steps.md"
RECORDING = ROOT / "docs" / "first-steps.cast"
IS_RECORDED = os.environ.get("TIDELOG_RECORD") == "1"
TITLE = "Tidelog: first steps"


def write_steps(page: Path, steps: list[Step]) -> None:
    """Write what the steps printed into the blocks of a page."""
    remaining = iter(steps)

    def renew(found: re.Match[str]) -> str:
        commands = [line for line in found[1].splitlines() if line.startswith("$ ")]
        taken = [next(remaining) for _ in commands]
        body = "".join(f"$ {step.command}\n{step.output}" for step in taken)
        return f"```console\n{body}```"

    text = re.sub(r"^```console\n(.*?)^```", renew, page.read_text(), flags=re.MULTILINE | re.DOTALL)
    page.write_text(text)


@pytest.mark.parametrize("page", [ROOT / "README.md", FIRST_STEPS], ids=["README", "first-steps"])
def test_a_session_prints_the_output_of_the_page(page: Path, fresh_broker: BrokerProcess) -> None:
    steps = steps_of(page)
    assert len(steps) > 5
    found = run_steps(steps, fresh_broker.bootstrap)
    if IS_RECORDED:
        write_steps(page, found)
        if page == FIRST_STEPS:
            RECORDING.write_text(build_recording(found, TITLE))
        return
    assert mask_times(found) == mask_times(steps)


def test_the_recording_shows_the_session_of_the_page() -> None:
    steps = steps_of(FIRST_STEPS)
    assert text_of_recording(RECORDING) == "".join(f"$ {step.command}\n{step.output}" for step in steps)
