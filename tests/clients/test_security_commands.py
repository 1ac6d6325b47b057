"""``tidelog user``, ``quota``, ``acl`` and ``transaction`` against Tidelog and Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from benchmarks.rivals.process import BrokerProcess
from tests.support.apache_kafka import CONFIG_COMMAND, ApacheKafka, run_tool
from tests.support.broker import TidelogProcess
from tests.support.shell import Shell

ACL_COMMAND = "org.apache.kafka.tools.AclCommand"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module", params=["tidelog", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of either kind with ACLs, shared by the tests of this module."""
    kind = ApacheKafka if request.param == "kafka" else TidelogProcess
    with kind(tmp_path_factory.mktemp(request.param), AUTHORIZER) as process:
        yield process


@pytest.fixture
def shell(served: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(served.bootstrap, capsys)


def alices(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the entries of the user alice: the broker is shared, and other tests have users, too."""
    return [one for one in found if one["user"] == "alice"]


def test_users_are_created_and_deleted(shell: Shell) -> None:
    assert (
        shell.text("user", "create", "alice", "--password", "secret") == "user alice has a password for SCRAM-SHA-256\n"
    )
    shell.json("user", "create", "alice", "--password", "x", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    found = [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    shell.until(found, "user", "list", "alice")
    shell.until(found, "user", "list", of=alices)
    shell.text("user", "delete", "alice", "--mechanism", "SCRAM-SHA-512")
    shell.until(found[:1], "user", "list", of=alices)
    assert shell.text("user", "delete", "alice") == "deleted the password of user alice for SCRAM-SHA-256\n"
    shell.until([], "user", "list", of=alices)
    assert "user alice" in shell.failure("user", "delete", "alice")
    assert "user alice" in shell.failure("user", "list", "alice")


def limits(found: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, float]]]:
    return [(one["entity"], one["limits"]) for one in found]


def test_quotas_are_set_and_unset(shell: Shell) -> None:
    text = shell.text("quota", "set", "producer_byte_rate=1048576", "request_percentage=50.5", "--user", "bob")
    assert text == "user bob: set producer_byte_rate=1048576\nuser bob: set request_percentage=50.5\n"
    shell.text("quota", "set", "consumer_byte_rate=7", "--client-id", "c", "--default", "user")
    bob = ({"user": "bob"}, {"producer_byte_rate": 1048576.0, "request_percentage": 50.5})
    default = ({"client-id": "c", "user": None}, {"consumer_byte_rate": 7.0})
    shell.until([bob], "quota", "list", "--user", "bob", of=limits)
    shell.until([default], "quota", "list", "--default", "user", of=limits)
    shell.until(True, "quota", "list", of=lambda found: bob in limits(found) and default in limits(found))
    assert "client-id c, user (default)  consumer_byte_rate" in shell.text("quota", "list")
    shell.text("quota", "unset", "producer_byte_rate", "request_percentage", "--user", "bob")
    shell.text("quota", "unset", "consumer_byte_rate", "--client-id", "c", "--default", "user")
    shell.until(False, "quota", "list", of=lambda found: bob in limits(found) or default in limits(found))
    assert "no_such_rate" in shell.failure("quota", "set", "no_such_rate=1", "--user", "bob")


def test_acls_are_created_listed_and_deleted(shell: Shell) -> None:
    rights = ("--allow-principal", "User:carol", "--operation", "read", "--operation", "describe")
    made = shell.json("acl", "create", "--topic", "orders-", "--resource-pattern-type", "prefixed", *rights)
    assert {rule["operation"] for rule in made} == {"read", "describe"}
    shell.text(
        "acl", "create", "--cluster", "--deny-principal", "User:dave", "--operation", "all", "--host", "10.0.0.1"
    )
    shell.until(2, "acl", "list", "--principal", "User:carol", of=len)
    shell.until(
        [{
            "resource_type": "cluster", "resource_name": "kafka-cluster", "pattern_type": "literal",
            "principal": "User:dave", "host": "10.0.0.1", "operation": "all", "permission": "deny",
        }],
        "acl", "list", "--cluster", of=lambda found: [one for one in found if one["principal"] == "User:dave"],
    )  # fmt: skip
    assert len(shell.json("acl", "delete", "--principal", "User:carol", "--operation", "read")) == 1
    shell.until(["describe"], "acl", "list", "--topic", "orders-", of=lambda found: [one["operation"] for one in found])
    shell.text("acl", "delete", "--cluster")
    shell.text("acl", "delete", "--topic", "orders-")
    shell.until(
        [], "acl", "list", of=lambda found: [one for one in found if one["principal"] in ("User:carol", "User:dave")]
    )


def test_a_transaction_is_seen_and_aborted(shell: Shell) -> None:
    shell.text("topic", "create", "paid", "-p", "1")
    shell.until(True, "topic", "list", of=lambda found: "paid" in {one["name"] for one in found})
    producer = Producer({"bootstrap.servers": shell.bootstrap, "transactional.id": "till"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", b"7")
    producer.flush(30)
    listed = [("till", "Ongoing")]
    shell.until(
        listed, "transaction", "list", "--state", "Ongoing",
        of=lambda found: [pair for pair in map(itemgetter("transactional_id", "state"), found) if pair in listed],
    )  # fmt: skip
    found = shell.json("transaction", "describe", "till")
    assert (found["state"], found["partitions"]) == ("Ongoing", ["paid-0"])
    described = shell.text("transaction", "describe", "till")
    assert "state: Ongoing\nopen for: " in described
    assert "was Ongoing" in shell.text("transaction", "abort", "till")
    shell.until(
        "CompleteAbort",
        "transaction",
        "describe",
        "till",
        of=lambda one: one["state"].replace("Empty", "CompleteAbort"),
    )
    assert "open for" not in shell.text("transaction", "describe", "till")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert shell.text("consume", "paid", "--isolation", "read_committed") == ""
    assert "7" in shell.text("consume", "paid")


def test_a_transaction_is_aborted_in_one_partition(shell: Shell) -> None:
    shell.text("topic", "create", "hung", "-p", "1")
    shell.until(True, "topic", "list", of=lambda found: "hung" in {one["name"] for one in found})
    producer = Producer({"bootstrap.servers": shell.bootstrap, "transactional.id": "hangs"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("hung", b"1")
    producer.flush(30)
    place = ("--topic", "hung", "--partition", "0")
    assert "open: 0" in shell.failure("transaction", "abort", *place, "--start-offset", "5")
    assert "in hung-0\n" in shell.text("transaction", "abort", *place, "--start-offset", "0")
    assert "open: none" in shell.failure("transaction", "abort", *place, "--start-offset", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["user", "create", "a", "--password", ""], "password"),
        (["user", "create", "a", "--password", "x", "--iterations", "7"], "--iterations"),
        (["user", "create", "a", "--password", "x", "--mechanism", "PLAIN"], "PLAIN"),
        (["quota", "set", "producer_byte_rate=1"], "expected --user"),
        (["quota", "set", "producer_byte_rate=fast", "--user", "a"], "expected a number"),
        (["quota", "set", "producer_byte_rate=1", "--user", "a", "--default", "user"], "--default user"),
        (["acl", "create", "--topic", "t", "--operation", "read"], "expected --allow-principal"),
        (["acl", "create", "--allow-principal", "User:a", "--operation", "read"], "expected a resource"),
        (["acl", "create", "--topic", "t", "--operation", "read", "--allow-principal", "a"], "User:a"),
        (["acl", "create", "--topic", "t", "--group", "g", "--operation", "read"], "one resource"),
        (["acl", "delete"], "all ACLs would be deleted"),
        (["transaction", "abort"], "expected a transactional id"),
        (["transaction", "abort", "x", "--topic", "t"], "expected a transactional id"),
    ],
)
def test_wrong_usage_is_one_line_and_asks_no_broker(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in Shell("127.0.0.1:1", capsys).failure(*words, code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["transaction", "describe", "no-such-id"], "transactional id no-such-id"),
        (["transaction", "abort", "no-such-id"], "transactional id no-such-id"),
    ],
)
def test_a_missing_user_quota_or_transaction_is_one_line(shell: Shell, words: list[str], message: str) -> None:
    assert message in shell.failure(*words)


@pytest.mark.java
@pytest.mark.slow
def test_kafkas_own_tools_see_the_same(shell: Shell) -> None:
    shell.text("user", "create", "erin", "--password", "secret")
    shell.text("quota", "set", "producer_byte_rate=99", "--user", "erin")
    shell.text("acl", "create", "--group", "g", "--allow-principal", "User:erin", "--operation", "read")
    server = ["--bootstrap-server", shell.bootstrap]
    output = run_tool(CONFIG_COMMAND, [*server, "--describe", "--entity-type", "users", "--entity-name", "erin"]).stdout
    assert "producer_byte_rate=99.0" in output
    assert "SCRAM-SHA-256=iterations=4096" in output
    rules = run_tool(ACL_COMMAND, [*server, "--list"]).stdout
    assert "principal=User:erin, host=*, operation=READ, permissionType=ALLOW" in rules
