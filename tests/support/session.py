"""Terminal sessions in documents: a test runs the commands of `console` blocks and compares what they print.

A block has commands, in lines that begin with ``$ ``, each followed by its output. Times differ from run to run:
``mask_times`` makes them equal. A recording is an asciicast (version 2), which asciinema plays.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tidelog.broker_process import clean_environment

ADDRESS = "127.0.0.1:9092"
"""The broker's address in the documents."""
TIMEOUT_S = 60
WIDTH, HEIGHT = 100, 30
TYPING_S, PAUSE_S = 0.04, 0.6
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d")
_BEFORE = ("pip install", "tidelog serve")
"""Beginnings of commands that are not run here, because the test has done them already (its broker runs)."""


class Step(NamedTuple):
    """A command and what it printed."""

    command: str
    output: str


def steps_of(page: Path) -> list[Step]:
    """Read the steps of all console blocks of a page."""
    steps: list[Step] = []
    for block in _BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:], ""))
            else:
                steps[-1] = steps[-1]._replace(output=f"{steps[-1].output}{line}\n")
    return steps


def run_steps(steps: list[Step], bootstrap: str) -> list[Step]:
    """Run the commands in a shell, one after the other; return them with the output of this run."""
    environment = {
        **clean_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TIDELOG_BOOTSTRAP": bootstrap,
        "LC_ALL": "C.UTF-8",
    }
    return [run_step(step, bootstrap, environment) for step in steps]


def run_step(step: Step, bootstrap: str, environment: dict[str, str]) -> Step:
    """Run one command; return an installation or start of the broker unchanged, as the test has done it already."""
    if step.command.startswith(_BEFORE):
        return step
    done = subprocess.run(
        ["bash", "-c", step.command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return step._replace(output=done.stdout.replace(bootstrap, ADDRESS))


def mask_times(steps: list[Step]) -> list[Step]:
    """Return the steps with ``TIME`` in place of each time in their output."""
    return [step._replace(output=_TIME.sub("TIME", step.output)) for step in steps]


def build_recording(steps: list[Step], title: str) -> str:
    """Build an asciicast of the steps: each command typed, then its output."""
    header = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": title, "env": {"TERM": "xterm-256color"}}
    lines, now = [json.dumps(header)], 0.5

    def put(text: str, after: float) -> None:
        nonlocal now
        lines.append(json.dumps([round(now, 2), "o", text.replace("\n", "\r\n")], ensure_ascii=False))
        now += after

    for step in steps:
        put("$ ", TYPING_S)
        for character in step.command:
            put(character, TYPING_S)
        put("\n", PAUSE_S)
        if step.output:
            put(step.output, PAUSE_S * 2)
    return "\n".join(lines) + "\n"


def text_of_recording(path: Path) -> str:
    """Read the text that an asciicast shows."""
    _, *events = path.read_text().splitlines()
    return "".join(json.loads(event)[2] for event in events).replace("\r\n", "\n")
