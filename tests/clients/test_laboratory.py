"""Laboratory controls of a broker process: the guide's examples, snapshots against a model, and what they exclude."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import confluent_kafka
import pytest

import tidelog
from tests.support.power.waiting import wait_until
from tests.support.requirements import require_tool
from tests.support.session import mask_times, run_steps, steps_of
from tidelog.broker_process import clean_environment
from tidelog.client.admin.configs import Resource, alter_configs, describe_configs
from tidelog.client.admin.offsets import log_ends, partitions_of
from tidelog.client.admin.topics import NewTopic, create_topic, delete_topic, list_topics
from tidelog.client.cluster import Cluster
from tidelog.client.records.producer import OutgoingRecord, Producer
from tidelog.client.security import Security
from tidelog.client.settings import ClientSettings
from tidelog.laboratory import Snapshot

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "laboratory.md"
STEPS = 40
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def broker() -> Iterator[tidelog.Broker]:
    with tidelog.Broker(lab=True) as broker:
        yield broker


def connect(broker: tidelog.Broker) -> Cluster:
    return Cluster.open(ClientSettings(broker.bootstrap, Security({})))


def produce(cluster: Cluster, topic: str) -> None:
    producer = Producer(cluster, topic, timeout_s=60)
    producer.send(OutgoingRecord(None, b"value"))
    producer.flush()


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_page.py").write_text("\n\n".join(blocks))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_page.py"]
    environment = {**clean_environment(), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    examples = sum(block.count("def test_") for block in blocks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{examples + 1} passed" in done.stdout, "one example has two parameters"


LABORATORY = "127.0.0.1:9645"


@contextmanager
def serving(command: str) -> Iterator[dict[str, str]]:
    """Run a broker by its command line; yield the addresses that it prints, by the word before each."""
    environment = {**clean_environment(), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        command.split(), env=environment, text=True, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            lines = [process.stdout.readline().rpartition(" ") for _ in range(3)]
            yield {words.partition(" ")[0]: address.strip() for words, _, address in lines}
            process.stdin.close()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
            process.wait()


def test_the_session_over_http_prints_the_output_of_the_page(tmp_path: Path) -> None:
    require_tool("curl", install="apt-get install curl")
    start, *steps = steps_of(PAGE)
    with serving(start.command.replace("--data-dir data", f"--data-dir {tmp_path / 'data'}")) as addresses:
        assert [line.split()[0] for line in start.output.splitlines()] == list(addresses)
        address = addresses["laboratory"].removeprefix("http://")
        moved = [step._replace(command=step.command.replace(LABORATORY, address)) for step in steps]
        found = run_steps(moved, addresses["tidelog"])
    assert [step.output for step in mask_times(found)] == [step.output for step in mask_times(steps)]


def test_controls_are_not_offered_to_other_machines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidelog", "serve", "--data-dir", str(tmp_path), "--laboratory-listener"]
    done = subprocess.run([*command, "0.0.0.0:0"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert "loopback address" in done.stderr


Model = dict[str, tuple[int, str]]
"""Log end and retention by topic."""


class World:
    """A broker, the model of its state, and the snapshots of both."""

    def __init__(self, broker: tidelog.Broker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.model: Model = {}
        self.kept: list[tuple[Snapshot, Model]] = []

    def step(self, cluster: Cluster) -> None:
        """Change one thing of the broker and of the model."""
        topic = self.random.choice("abc")
        if topic not in self.model:
            create_topic(cluster, NewTopic(topic, 1, 1, {"retention.ms": "1000000"}))
            self.model[topic] = (0, "1000000")
            return
        end, retention = self.model[topic]
        match self.random.randrange(4):
            case 0:
                delete_topic(cluster, topic)
                del self.model[topic]
            case 1:
                retention = str(self.random.randrange(1_000_000, 2_000_000))
                alter_configs(cluster, Resource("topic", topic), {"retention.ms": retention})
                self.model[topic] = (end, retention)
            case _:
                produce(cluster, topic)
                self.model[topic] = (end + 1, retention)

    def keep(self) -> None:
        self.kept.append((self.broker.lab.snapshot(), dict(self.model)))

    def restore(self) -> None:
        snapshot, model = self.random.choice(self.kept)
        self.broker.lab.restore(snapshot)
        self.model = dict(model)

    def found(self, cluster: Cluster) -> Model:
        """Return the state of the broker."""
        found: Model = {}
        for topic in list_topics(cluster):
            (end,) = log_ends(cluster, partitions_of(cluster, topic.name)).values()
            configs = describe_configs(cluster, Resource("topic", topic.name))
            (retention,) = [entry.value for entry in configs if entry.key == "retention.ms"]
            found[topic.name] = (end, str(retention))
        return found


@pytest.mark.parametrize("seed", range(int(os.environ.get("TIDELOG_LABORATORY_SEEDS", "2"))))
def test_a_restored_broker_is_as_it_was(broker: tidelog.Broker, seed: int) -> None:
    world = World(broker, seed)
    with connect(broker) as cluster:
        for topic in list_topics(cluster):
            delete_topic(cluster, topic.name)
    world.keep()
    for _ in range(STEPS // 8):
        with connect(broker) as cluster:
            for _ in range(8):
                world.step(cluster)
        if world.random.random() < 0.4:
            world.keep()
        world.restore()
        with connect(broker) as cluster:
            assert world.found(cluster) == world.model


def test_the_clock_and_the_faults_are_restored(broker: tidelog.Broker) -> None:
    lab = broker.lab
    kept = lab.snapshot()
    before = lab.time_ms
    lab.advance(days=400)
    fault = lab.fail("CreateTopics", "POLICY_VIOLATION")
    assert lab.time_ms - before >= 400 * 86_400_000
    lab.restore(kept)
    assert lab.time_ms - before < 86_400_000
    with pytest.raises(tidelog.LaboratoryError, match="was cleared"):
        _ = fault.met


def test_a_full_disk_refuses_records_until_it_has_free_space(broker: tidelog.Broker) -> None:
    with connect(broker) as cluster:
        create_topic(cluster, NewTopic("full", 1, 1, {}))
        produce(cluster, "full")
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 10})
        refused = broker.lab.requests("Produce")
        with broker.lab.full_disk():
            producer.produce("full", b"value")
            wait_until(lambda: broker.lab.requests("Produce") >= refused + 2)
            assert list(log_ends(cluster, partitions_of(cluster, "full")).values()) == [1]
        assert producer.flush(60) == 0
        assert list(log_ends(cluster, partitions_of(cluster, "full")).values()) == [2]


def test_a_laboratory_starts_again_with_its_controls() -> None:
    with tidelog.Broker(lab=True) as broker:
        bootstrap = broker.bootstrap
        broker.restart()
        broker.lab.advance(days=1)
        assert broker.bootstrap == bootstrap
    with pytest.raises(tidelog.BrokerProcessError):
        _ = broker.lab
