"""A broker whose only listener requires a password; its first user was added before its first start."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.support.broker import TidelogProcess
from tests.support.secured_clients import Security
from tidelog.cli import main

MECHANISM = "SCRAM-SHA-512"
PASSWORD = 'secret, "really"'
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": MECHANISM,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


def format_directory(broker: TidelogProcess, directory: Path) -> None:
    config, password = directory / "server.properties", directory / "password"
    config.write_text(f"node.id=1\nlog.dirs={broker.data_directory}\n")
    password.write_text(f"{PASSWORD}\n")
    argument = f"{MECHANISM}=[name=admin,password-file={password},iterations=8192]"
    assert main(["format", "-t", "5L6g3nShT-eMCtK--X86sw", "-c", str(config), "--add-scram", argument]) == 0


def users_of(broker: TidelogProcess) -> dict[str, list[tuple[str, int]]]:
    """Ask DescribeUserScramCredentials as the admin: user -> mechanism and iterations."""
    security = Security("SASL_PLAINTEXT", Path(), mechanism=MECHANISM, user="admin", password=PASSWORD)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **security.librdkafka()})
    described = admin.describe_user_scram_credentials(request_timeout=60)
    assert isinstance(described, Future)
    return {
        user: [(info.mechanism.name, info.iterations) for info in found.scram_credential_infos]
        for user, found in described.result().items()
    }


def test_the_first_user_logs_in_and_is_there_once(tmp_path: Path) -> None:
    broker = TidelogProcess(tmp_path, SETTINGS)
    format_directory(broker, tmp_path)
    expected = {"admin": [("SCRAM_SHA_512", 8192)]}
    with broker:
        assert users_of(broker) == expected
        broker.kill()
        broker.start()
        assert users_of(broker) == expected
