"""All replicas lose power at once, and unsynced records may be lost (R5 of docs/internals/faults.md)."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.rivals.apache_kafka import CLUSTER_ID
from benchmarks.rivals.process import BrokerProcess
from tests.support.faulty_cluster.amount import MIXES, at_length, cycles
from tests.support.faulty_cluster.clients import Writer, read_all
from tests.support.faulty_cluster.cluster import IDS, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.member import MemberNode
from tests.support.power.crash import draw
from tests.support.power.disk import Disk
from tests.support.power.recording import recording
from tests.support.power.trace import read_trace

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]


class Recorded(MemberNode):
    """A member whose effects on its directory are recorded, from its format on, until it has lost power."""

    has_lost_power = False

    @property
    def root(self) -> Path:
        """The recorded directory."""
        return self.directory / "disk"

    @property
    def data_directory(self) -> Path:
        return self.root / "data"

    @property
    def trace(self) -> Path:
        """The recorded effects."""
        return self.directory / "trace"

    def start(self) -> Recorded:
        """Format and start under the recorder. Raises BrokerError."""
        if self.has_lost_power:
            return super().start()
        self.root.mkdir(parents=True)
        self.trace.touch()
        self.properties_path.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
        words = ["format", "-t", CLUSTER_ID, "-c", str(self.properties_path)]
        command = [sys.executable, "-I", "-m", "tidelog.cli", *words]
        subprocess.run(command, check=True, env=self.environment(), capture_output=True)
        BrokerProcess.start(self)
        return self

    def environment(self) -> dict[str, str]:
        if self.has_lost_power:
            return super().environment()
        return {**super().environment(), **recording(self.root, self.trace)}

    def lose_power(self, chance: random.Random) -> None:
        """Put in the directory's place what a power loss may have left of it."""
        steps, disk = read_trace(self.trace, self.root), Disk()
        for step in steps:
            disk.step(step)
        crash = draw(disk, len(steps), chance, loose=True)
        shutil.rmtree(self.root)
        crash.write(disk, self.root)
        self.has_lost_power = True


def lose_unsynced(directory: Path, chance: random.Random, *, is_flushed: bool) -> None:
    """Remove from a Java broker's partition what a power loss may: its indexes, and any end of a log never synced.

    What it has written is not recorded: a JVM maps its indexes into memory.
    """
    for path in directory.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()
        elif path.suffix == ".log" and not is_flushed:
            os.truncate(path, chance.randrange(path.stat().st_size + 1))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("is_flushed", [True, False], ids=["flushed", "unflushed"])
def test_all_replicas_lose_power(*, is_flushed: bool, mix: str, tmp_path: Path) -> None:
    """With flush.messages=1 nothing is lost; without, an end of the log at most, and the cluster serves again."""
    again, lost, total = [], 0, 0
    for cycle in range(cycles(2)):
        history, chance = History(), random.Random(cycle)
        with FaultyCluster(tmp_path / str(cycle), mix, make_member=Recorded) as cluster:
            if is_flushed:
                cluster.create("r5", flush_messages="1")
            else:
                cluster.create("r5", unclean_leader_election_enable="true")
            with Writer(cluster.bootstrap, "r5", history) as writer:
                writer.wait_for(50 + chance.randrange(100))
                cluster.kill(*IDS)
                writer.abandon()
            for node_id in IDS:
                node = cluster.brokers[node_id]
                if isinstance(node, Recorded):
                    node.lose_power(chance)
                else:
                    lose_unsynced(Path(node.data_directory) / "r5-0", chance, is_flushed=is_flushed)
            since = time.monotonic()
            cluster.start(*IDS)
            cluster.wait_isr("r5")
            again.append(time.monotonic() - since)
            with Writer(cluster.bootstrap, "r5", history, "after") as writer:
                writer.wait_for(20)
            cluster.wait_equal_files("r5")
            findings = history.findings(read_all(cluster.bootstrap, {"r5": 1}))
        total += len(history.acknowledged)
        lost += len(findings.lost)
        if not is_flushed:
            findings = findings._replace(lost=[], changed=[])
        assert findings.is_clean, findings
    name = f"R5-{'flushed' if is_flushed else 'unflushed'}"
    conclude(name, mix, History(), History().findings([]), again, acknowledged_in_all=total, lost_in_all=lost)
