"""Nodes of Kafka that are threads of one JVM start, serve, stop and fail each by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rivals.process import BrokerError, ask_api_versions
from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.java


def test_nodes_of_one_jvm_live_on_their_own(tmp_path: Path) -> None:
    first, second = (ApacheKafka(tmp_path / name, in_shared_jvm=True) for name in ("first", "second"))
    with first:
        Admin(first.bootstrap).create("of-the-first", 1)
        with second:
            assert "of-the-first" not in Admin(second.bootstrap).topics()
            first.restart()
            assert "of-the-first" in Admin(first.bootstrap).topics()
        assert not ask_api_versions(second.host, second.port, 5)
        with pytest.raises(AssertionError, match="JVM of its own"):
            first.kill()
        Admin(first.bootstrap).create("after-all", 1)


def test_a_node_leaves_the_files_of_a_kill_and_recovers(tmp_path: Path) -> None:
    """The other node of the JVM goes on; no file tells of a clean stop."""
    node, other = (ApacheKafka(tmp_path / name, in_shared_jvm=True) for name in ("node", "other"))
    with other, node:
        Admin(node.bootstrap).create("kept", 1)
        node.leave_as_killed()
        assert not (node.data_directory / ".kafka_cleanshutdown").exists()
        Admin(other.bootstrap).create("meanwhile", 1)
        node.start()
        assert "kept" in Admin(node.bootstrap).topics()
        node.terminate()
        assert (node.data_directory / ".kafka_cleanshutdown").exists()


def test_a_node_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    node = ApacheKafka(tmp_path, {"num.io.threads": "none"}, in_shared_jvm=True)
    with pytest.raises(BrokerError, match=r"ended while it started(.|\n)*num.io.threads"):
        node.start()
    assert node.process is None
