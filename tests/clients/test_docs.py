"""The README's examples, run unchanged against a broker of their own.

The only change is the port: a test cannot count on 9092 being free.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerProcess
from tests.support.requirements import require_tool
from tidelog.broker_process import clean_environment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 60


def section(title: str) -> str:
    """Return the text below a heading, up to the next one of its kind."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no section {title!r}"
    return found[1]


def shell_blocks(text: str) -> list[str]:
    """Return the blocks indented by four spaces, outside of fenced ones."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]


def python_blocks(text: str) -> list[str]:
    """Return the fenced blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(command: list[str], broker: BrokerProcess | None = None) -> str:
    """Run an example, which must end with 0, and return its standard output."""
    if broker is not None:
        assert ADDRESS in command[-1]
        command = [*command[:-1], command[-1].replace(ADDRESS, broker.bootstrap)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, env=clean_environment(), check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_kcat_example_prints_its_record(fresh_broker: BrokerProcess) -> None:
    require_tool("kcat", install="apt-get install kcat")
    (block,) = shell_blocks(section("Produce and consume"))
    assert "offset 0: 4711 = paid" in run(["bash", "-euo", "pipefail", "-c", block], fresh_broker)


def test_the_python_example_prints_its_record(fresh_broker: BrokerProcess) -> None:
    example = next(block for block in python_blocks(README) if "confluent_kafka" in block)
    assert run([sys.executable, "-c", example], fresh_broker) == "0 b'4711' b'paid'\n"


def test_the_example_of_a_broker_inside_a_test_prints_where_it_listens() -> None:
    example = next(block for block in python_blocks(README) if "tidelog.Broker" in block)
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", run([sys.executable, "-c", example]))


def test_the_find_example_prints_its_record(fresh_broker: BrokerProcess) -> None:
    """The command, and the virtual topic that kcat reads; the topic has the config that the text names."""
    require_tool("kcat", install="apt-get install kcat")
    text = section("Find a record")
    (block,) = shell_blocks(text)
    (config,) = re.findall(r"`(index\.keys=true)`", text)
    make_indexed_topic(fresh_broker, "orders", *config.split("="))
    command = f"{sys.executable} -m tidelog.cli find --bootstrap {ADDRESS}"
    assert block.startswith("tidelog find ")
    found = run(["bash", "-euo", "pipefail", "-c", block.replace("tidelog find", command, 1)], fresh_broker)
    assert found.count("paid") == 2, found
    assert "sent" not in found


def make_indexed_topic(broker: BrokerProcess, topic: str, key: str, value: str) -> None:
    """Make the topic, with an order that is looked for and one that is not."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(topic, 1, config={key: value})]).values():
        created.result()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"paid", b"4711")
    producer.produce(topic, b"sent", b"4712")
    assert producer.flush(30) == 0


def test_every_python_example_is_run_here() -> None:
    assert len(python_blocks(README)) == 2, "give a new example of README.md its test"


def test_the_examples_of_a_broker_in_a_test_run(tmp_path: Path) -> None:
    """Scripts of docs/testing.md print, and its fixtures serve a test as each of them says."""
    blocks = python_blocks((ROOT / "docs" / "testing.md").read_text())
    scripts = [block for block in blocks if "with tidelog.Broker(" in block]
    fixtures = [block for block in blocks if block not in scripts]
    assert len(scripts) == len(fixtures) == 2
    for script in scripts:
        assert "127.0.0.1:" in run([sys.executable, "-c", script])
    (tmp_path / "test_page.py").write_text("\n".join(fixtures))
    assert "1 passed" in run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)])


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^    make (\S+)", section("Two commands"), re.MULTILINE)
    assert commands == ["run", "test"]
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_is_named_exists(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:`|^    )make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE)):
        assert re.search(rf"^(?:[a-z-]+ )*{target}(?: [a-z-]+)*:", makefile, re.MULTILINE), f"{page}: make {target}"
