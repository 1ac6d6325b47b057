"""docs/spark-example.md, run unchanged: its Python blocks in one namespace and its commands, in their order.

What is changed are the broker's address, its data directory, where results go, and where the connector's jars are.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals.spark import CONNECTOR, connector_jars
from tests.support.broker import TidelogProcess
from tidelog.broker_process import clean_environment

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spark-example.md"
BLOCK = re.compile(
    r"^```python\n(?P<python>.*?)^```|^    (?P<command>tidelog pipeline [^\n]*)", re.MULTILINE | re.DOTALL
)
COMMAND_TIMEOUT_S = 120


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of each Python block and each command, in the page's order."""
    for found in BLOCK.finditer(page):
        kind = "python" if found["python"] else "command"
        yield kind, found[kind]


def run_command(command: str) -> str:
    environment = {**clean_environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(
        command.split(),
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


def moved(text: str, broker: TidelogProcess, work: Path) -> str:
    """Replace the page's places by the test's."""
    text = text.replace('"127.0.0.1:9092"', f'"{broker.bootstrap}"').replace(
        'DATA = "data"', f'DATA = "{data(broker)}"'
    )
    text = text.replace("--path data", f"--path {data(broker)}").replace(
        'Path("jars")', f'Path("{connector_jars()[0].parent}")'
    )
    return text.replace("spark-example", str(work))


def data(broker: TidelogProcess) -> str:
    return str(broker.data_directory)


@pytest.fixture
def time_zones() -> Iterator[None]:
    """The page reads the package's time zones; afterwards it is the system's again."""
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("time_zones", "spark")
def test_every_block_of_the_page_runs(tidelog_broker: TidelogProcess, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "example"}
    printed = []
    for kind, text in steps(PAGE.read_text()):
        if kind == "python":
            exec(compile(moved(text, tidelog_broker, tmp_path), str(PAGE), "exec"), namespace)
        else:
            printed.append(run_command(moved(text, tidelog_broker, tmp_path)))
    assert len(printed) == 3
    assert "everything is in order" in printed[2]
    assert (tmp_path / "report" / "report.md").exists()


def test_the_page_fetches_the_jars_that_the_tests_run_with() -> None:
    fetched = re.findall(
        r"^    mvn -q dependency:copy -DoutputDirectory=jars -Dartifact=(\S+)$", PAGE.read_text(), re.M
    )
    assert fetched == [f"{jar.group}:{jar.name}:{jar.version}" for jar in CONNECTOR]


def test_the_page_has_the_blocks_it_had() -> None:
    kinds = [kind for kind, _ in steps(PAGE.read_text())]
    assert (kinds.count("python"), kinds.count("command")) == (7, 3)
