"""ACLs with Kafka's own tool, unmodified: kafka-acls adds, lists and removes."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidelog
from tests.support.apache_kafka import run_tool
from tidelog.broker.config.authorizer_keys import STANDARD_AUTHORIZER

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
ACLS = "org.apache.kafka.tools.AclCommand"


def kafka_acls(broker: tidelog.Broker, *arguments: str) -> list[str]:
    """Run the tool; the lines of its output."""
    done = run_tool(ACLS, ["--bootstrap-server", broker.bootstrap, *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


@pytest.mark.java
@pytest.mark.slow
def test_kafka_acls_adds_lists_and_removes(tmp_path: Path) -> None:
    with tidelog.Broker(AUTHORIZER, data_dir=tmp_path) as broker:
        rights = ["--allow-principal", "User:ann", "--consumer", "--topic", "orders", "--group", "g"]
        kafka_acls(broker, "--add", *rights, "--resource-pattern-type", "prefixed")
        kafka_acls(broker, "--add", "--deny-principal", "User:bob", "--operation", "All", "--topic", "*")
        lines = kafka_acls(broker, "--list")
        assert "Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=*, patternType=LITERAL)`:" in lines
        assert "(principal=User:bob, host=*, operation=ALL, permissionType=DENY)" in lines
        assert "(principal=User:ann, host=*, operation=DESCRIBE, permissionType=ALLOW)" in lines
        kafka_acls(broker, "--remove", "--force", *rights, "--resource-pattern-type", "prefixed")
        left = kafka_acls(broker, "--list")
        assert [line for line in left if line.startswith("(")] == [
            "(principal=User:bob, host=*, operation=ALL, permissionType=DENY)"
        ]
