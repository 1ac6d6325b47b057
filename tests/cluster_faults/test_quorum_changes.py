"""A quorum whose controllers are replaced while members serve (KIP-853): two others replace the first one."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.apache_kafka import CLUSTER_ID, STORAGE_TOOL
from tests.support.apache_kafka import run_tool
from tests.support.cluster_clients import WAIT_S, Writer, values
from tests.support.faulty_cluster.amount import at_length
from tests.support.kraft_node import HOST, KraftNode, ports_of_controllers, wait_until
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
QUORUM_COMMAND = "org.apache.kafka.tools.MetadataQuorumCommand"


class DynamicController(KraftNode):
    """A controller whose quorum stands in its log; the first one is formatted as the only voter."""

    def properties(self) -> dict[str, str]:
        settings = super().properties()
        del settings["controller.quorum.voters"]
        known = ",".join(f"{HOST}:{port}" for port in self.controllers.values())
        return {**settings, "controller.quorum.bootstrap.servers": known}

    def format_data_directory(self) -> None:
        """Format as the only voter, or as one that is to be added."""
        way = "--standalone" if self.node_id == min(self.controllers) else "--no-initial-controllers"
        path = str(self.directory / "server.properties")
        done = run_tool(STORAGE_TOOL, ["format", "-t", CLUSTER_ID, "-c", path, way])
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def id_of_directory(self) -> str:
        """The ``directory.id`` by which a voter is removed."""
        text = (self.data_directory / "meta.properties").read_text()
        return next(line.partition("=")[2] for line in text.splitlines() if line.startswith("directory.id="))


def change_quorum(member: MemberNode, *words: str) -> None:
    """Change the quorum by Kafka's tool, which asks a member; it forwards to the active controller."""
    done = run_tool(QUORUM_COMMAND, ["--bootstrap-server", member.bootstrap, *words])
    assert done.returncode == 0, done.stdout + done.stderr


def create(member: MemberNode, topic: str) -> None:
    """Create a topic of one partition."""
    admin = AdminClient({"bootstrap.servers": member.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 1, 1)]).values()
    made.result()


def add(member: MemberNode, controller: DynamicController) -> None:
    """Start a controller, and make it a voter once it has caught up."""
    controller.start()
    change_quorum(member, "--command-config", str(controller.directory / "server.properties"), "add-controller")
    wait_until(lambda: f'"id": {controller.node_id}' in voters(member), "another voter", WAIT_S)


def voters(member: MemberNode) -> str:
    """Return the line of the current voters, as the member passes it on."""
    done = run_tool(QUORUM_COMMAND, ["--bootstrap-server", member.bootstrap, "describe", "--status"])
    assert done.returncode == 0, done.stdout + done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("CurrentVoters"))


def test_the_first_controller_is_replaced_while_a_member_serves(tmp_path: Path) -> None:
    ports = ports_of_controllers(3)
    first, second, third = (
        DynamicController(tmp_path, number, ports, overrides={"broker.session.timeout.ms": "3000"}) for number in ports
    )
    member = MemberNode(tmp_path, 101, ports)
    nodes = (first, second, third, member)
    try:
        first.start()
        member.start()
        create(member, "kept")
        with Writer(member.bootstrap, "kept") as writer:
            for controller in (second, third):
                add(member, controller)
                writer.wait_for(50)
            removed = ("--controller-id", "1", "--controller-directory-id", first.id_of_directory)
            change_quorum(member, "remove-controller", *removed)
            wait_until(lambda: '"id": 1,' not in voters(member), "the voter is removed", WAIT_S)
            first.terminate()
            writer.wait_for(50)
            create(member, "later")
            member.terminate()
            member.start()
            create(member, "last")
            writer.wait_for(50)
        assert writer.errors == []
        assert values(member.bootstrap, "kept") == writer.acknowledged
    finally:
        print(*(node.output() for node in nodes), sep="\n")
        for node in nodes:
            node.kill()
