"""Controllers that were restored from a backup, which is older than the metadata that a broker has applied (R6 of
docs/internals/faults.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerError
from tests.support.faulty_cluster.amount import at_length
from tests.support.kraft_node import SHORT_SESSIONS, KraftNode, ports_of_controllers
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow]
MEMBER = 101


def create(node: MemberNode, name: str) -> None:
    """Create a topic of one replica."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    (future,) = admin.create_topics([NewTopic(name, 1, 1)]).values()
    future.result()


@at_length
def test_a_quorum_restored_from_a_backup_is_refused(tmp_path: Path) -> None:
    """A broker that knows newer metadata would lead and truncate by what the quorum has forgotten."""
    ports = ports_of_controllers(1)
    controller = KraftNode(tmp_path, 1, ports, overrides=SHORT_SESSIONS, in_shared_jvm=True)
    member = MemberNode(tmp_path, MEMBER, ports)
    backup = tmp_path / "backup"
    with controller:
        with member:
            create(member, "before")
            controller.terminate()
            shutil.copytree(controller.data_directory, backup)
            controller.start()
            create(member, "after")
        controller.terminate()
        shutil.rmtree(controller.data_directory)
        shutil.copytree(backup, controller.data_directory)
        controller.start()
        member.overrides["initial.broker.registration.timeout.ms"] = "5000"
        with pytest.raises(BrokerError, match="has acted upon metadata up to offset"):
            member.start()
