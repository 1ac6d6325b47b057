"""Apache Kafka's admin tools, unmodified, with every request that a single node can answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.support.apache_kafka import CONFIG_COMMAND, TOPIC_COMMAND, run_tool

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tidelog.Broker]:
    with tidelog.Broker(data_dir=tmp_path_factory.mktemp("data")) as running:
        tool(running, TOPIC_COMMAND, "--create", "--topic", "orders", "--partitions", "2")
        yield running


def tool(broker: tidelog.Broker, name: str, *arguments: str) -> str:
    """Run a tool and return its output; the address goes before a sub-command only where the tool wants it there."""
    address = ["--bootstrap-server", broker.bootstrap]
    leads = name.endswith(("MetadataQuorumCommand", "FeatureCommand"))
    done = run_tool(name, [*address, *arguments] if leads else [*arguments, *address])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def configure(broker: tidelog.Broker, kind: str, name: str, *, add: str | None = None, what: str = "") -> str:
    """Run ``kafka-configs`` for one entity: set ``add``, or describe."""
    entity = ["--entity-type", kind, "--entity-name", name]
    action = ["--describe", *what.split()] if add is None else ["--alter", "--add-config", add]
    return tool(broker, CONFIG_COMMAND, *entity, *action)


def test_kafka_log_dirs_describes_the_directory(broker: tidelog.Broker) -> None:
    line = tool(broker, f"{TOOLS}.LogDirsCommand", "--describe").strip().splitlines()[-1]
    (node,) = json.loads(line)["brokers"]
    (directory,) = node["logDirs"]
    assert (node["broker"], directory["logDir"], directory["error"]) == (1, str(broker.data_dir), None)
    assert {entry["partition"] for entry in directory["partitions"]} >= {"orders-0", "orders-1"}


def test_kafka_metadata_quorum_describes_the_only_node(broker: tidelog.Broker) -> None:
    status = tool(broker, f"{TOOLS}.MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\n", status)
    assert re.search(r"MaxFollowerLag:\s+0\n", status)


def test_kafka_cluster_prints_the_cluster_id(broker: tidelog.Broker) -> None:
    assert broker.data_dir is not None
    found = re.search(r"cluster\.id=(\S+)", (broker.data_dir / "meta.properties").read_text())
    assert found is not None
    assert found[1] in tool(broker, f"{TOOLS}.ClusterTool", "cluster-id")


def test_kafka_features_describes_the_metadata_version(broker: tidelog.Broker) -> None:
    features = tool(broker, f"{TOOLS}.FeatureCommand", "describe")
    assert re.search(r"metadata\.version\s.*FinalizedVersionLevel: 4\.0-IV3", features)


def test_reassignment_and_election_change_nothing(broker: tidelog.Broker, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}))
    command = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    output = tool(broker, command, "--reassignment-json-file", os.fspath(plan), "--execute")
    assert "Successfully started partition reassignment" in output
    verified = tool(broker, command, "--reassignment-json-file", os.fspath(plan), "--verify")
    assert "Reassignment of partition orders-0 is completed." in verified
    elected = tool(
        broker,
        f"{TOOLS}.LeaderElectionCommand",
        "--election-type",
        "preferred",
        "--topic",
        "orders",
        "--partition",
        "0",
    )
    assert "Valid replica already elected" in elected


def test_kafka_configs_sets_quotas_and_scram_credentials(broker: tidelog.Broker) -> None:
    configure(broker, "users", "ann", add="producer_byte_rate=1024")
    configure(broker, "users", "ann", add="SCRAM-SHA-256=[iterations=4096,password=secret]")
    output = configure(broker, "users", "ann")
    assert "producer_byte_rate=1024.0" in output
    assert "SCRAM-SHA-256=iterations=4096" in output
    assert "secret" not in output


def test_kafkas_tools_set_configs_of_groups_and_client_metrics(broker: tidelog.Broker) -> None:
    configure(broker, "groups", "g", add="consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in configure(broker, "groups", "g")
    configure(broker, "client-metrics", "m", add="metrics=org.apache.kafka.,interval.ms=1000")
    assert tool(broker, f"{TOOLS}.ClientMetricsCommand", "--list").strip() == "m"


def test_kafka_configs_sets_log_levels(broker: tidelog.Broker) -> None:
    configure(broker, "broker-loggers", "1", add="tidelog.broker.server=DEBUG")
    assert "tidelog.broker.server=DEBUG" in configure(broker, "broker-loggers", "1")


def test_versions_are_usable(broker: tidelog.Broker) -> None:
    output = tool(broker, f"{TOOLS}.BrokerApiVersionsCommand")
    assert "Metadata(3): 0 to 13 [usable: 13]" in output
