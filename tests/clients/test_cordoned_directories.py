"""Cordoned log directories of a member (KIP-1066), set in the configuration file and by Kafka's own tool while the
member runs: the controllers are told of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.apache_kafka import CONFIG_COMMAND, run_tool
from tests.support.kraft_node import KraftNode, addresses, ports_of_controllers, wait_until
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow]
MEMBER = 101
DIRECTORIES = 2


class TwoDirectories(MemberNode):
    """A member with two log directories, the first of which is cordoned."""

    def properties(self) -> dict[str, str]:
        second = self.directory / "second"
        settings = {"log.dirs": f"{self.data_directory},{second}", "cordoned.log.dirs": str(self.data_directory)}
        return {**super().properties(), **settings}

    def logs(self, directory: str, topic: str) -> int:
        """Count the partitions of a topic that lie in a directory."""
        return len(list((self.directory / directory).glob(f"{topic}-*")))


def cordoned(controllers: Mapping[int, int]) -> int:
    """Return how many directories the metadata say are cordoned."""
    where = str(addresses(controllers)[0])
    words = ["metadata", "describe", "--bootstrap-controller", where, "--json"]
    command = [sys.executable, "-I", "-m", "tidelog.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (broker,) = json.loads(done.stdout)["brokers"]
    found: list[Any] | None = broker["cordonedDirectories"]
    return -1 if found is None else len(found)


def create(member: MemberNode, topic: str) -> None:
    """Create a topic of four partitions. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": member.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 4, 1)]).values()
    made.result()


def alter(member: MemberNode, *words: str) -> None:
    """Change the member's own configs by kafka-configs."""
    named = ["--entity-type", "brokers", "--entity-name", str(MEMBER), "--alter", *words]
    done = run_tool(CONFIG_COMMAND, ["--bootstrap-server", member.bootstrap, *named])
    assert done.returncode == 0, done.stdout + done.stderr


def test_controllers_are_told_of_cordoned_directories(tmp_path: Path) -> None:
    ports = ports_of_controllers(1)
    with KraftNode(tmp_path, 1, ports, in_shared_jvm=True), TwoDirectories(tmp_path, MEMBER, ports) as member:
        wait_until(lambda: cordoned(ports) == 1, "the directory of the configuration file")
        create(member, "early")
        wait_until(lambda: member.logs("second", "early") == 4, "logs in the other directory")
        assert member.logs("data", "early") == 0
        alter(member, "--add-config", "cordoned.log.dirs=*")
        wait_until(lambda: cordoned(ports) == DIRECTORIES, "all directories, by kafka-configs")
        with pytest.raises(KafkaException, match="cordoned"):
            create(member, "refused")
        alter(member, "--add-config", "cordoned.log.dirs=")
        wait_until(lambda: cordoned(ports) == 0, "none, by kafka-configs")
        create(member, "late")
        wait_until(lambda: member.logs("data", "late") > 0, "logs in both directories")
        alter(member, "--delete-config", "cordoned.log.dirs")
        wait_until(lambda: cordoned(ports) == 1, "the configuration file's again")
