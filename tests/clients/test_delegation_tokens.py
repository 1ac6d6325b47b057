"""Delegation tokens with Kafka's own tool, and a client of Kafka that logs in with one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_kafka import run_tool
from tests.support.broker import TidelogProcess, free_port
from tidelog.cli import main

TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

pytestmark = pytest.mark.java


class Served:
    """A broker with a listener that authenticates, and a user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://{self.address}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "delegation.token.secret.key": "word",
        })  # fmt: skip

    def properties(self, name: str, user: str, password: str, *, more: str = "") -> str:
        """Write a client's properties; return their path."""
        path = self.directory / f"{name}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            f'sasl.jaas.config={SCRAM} required username="{user}" password="{password}"{more};\n'
        )
        return str(path)

    def ask(self, tool: str, properties: str, *arguments: str) -> tuple[int, str]:
        done = run_tool(tool, ["--bootstrap-server", self.address, "--command-config", properties, *arguments])
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("tokens"))
    with served.broker:
        create = ["user", "create", "ann", "--mechanism", "SCRAM-SHA-512", "--password", "secret"]
        assert main([*create, "--bootstrap", served.broker.bootstrap]) == 0
        yield served


def test_a_token_is_created_shown_renewed_and_removed_by_kafkas_tool(served: Served) -> None:
    ann = served.properties("ann", "ann", "secret")
    code, made = served.ask(TOOL, ann, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    row = re.search(r"^([\w-]{22})\s+(\S{88})\s+User:ann\s+User:ann\s+\[User:bob\]", made, re.MULTILINE)
    assert code == 0, made
    assert row is not None, made
    token_id, secret = row.groups()
    bearer = served.properties("bearer", token_id, secret, more=' tokenauth="true"')
    assert served.ask(GROUPS, bearer, "--list")[0] == 0  # the client logs in with it
    code, described = served.ask(TOOL, ann, "--describe", "--owner-principal", "User:ann")
    assert (code, token_id in described, secret in described) == (0, True, True), described
    assert "are not allowed on" in served.ask(TOOL, bearer, "--describe", "--owner-principal", "User:ann")[1]
    code, renewed = served.ask(TOOL, ann, "--renew", "--renew-time-period", "-1", "--hmac", secret)
    assert code == 0, renewed
    code, expired = served.ask(TOOL, ann, "--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert code == 0, expired
    assert "SaslAuthenticationException" in served.ask(GROUPS, bearer, "--list")[1]
