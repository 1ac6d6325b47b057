"""Apache Kafka and Tidelog with an authorizer and the same contents, and clients: a super user and users who log in.

The client without a login, on a listener of its own, is a super user: it prepares both brokers and changes the ACLs.
Two users log in by SASL/PLAIN, each from two addresses of this machine. There are topics, offsets of groups, a consumer
group with a member, an open transaction and a delegation token of each user. No compared request changes any of them.
"""

from __future__ import annotations

import base64
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.access_questions import Names, PermissionRequest, join_requests
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess, free_port
from tests.support.compared import AT_ONCE, OVERRIDES, until_ready
from tests.support.questions import Broker
from tests.support.scripts.registry import create
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.client import Client
from tidelog.client.security import Security
from tidelog.protocol.acl import CLUSTER_NAME, AclOperation, AclPermissionType, PatternType, ResourceType

WAIT_S = 60.0
TOPICS = ("orders", "orders-eu", "bills")
MISSING = ("orders-none", "zebra")
GROUPS = ("app", "app-2", "readers", "reports")
TRANSACTIONS = ("tx", "tx-2", "other")
USERS = {"ann": "ann-secret", "bob": "bob-secret"}
HOSTS = ("127.0.0.1", "127.0.0.2")
NO_TOPIC = bytes(range(16))
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{name}="{password}"' for name, password in USERS.items()
)
SETTINGS = {
    **OVERRIDES,
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS + ";",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "word",
    "group.consumer.max.session.timeout.ms": "3600000",
    "group.consumer.session.timeout.ms": "3600000",
    "log.retention.ms": "-1",  # records are of a fixed date
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
OPERATIONS = {
    ResourceType.TOPIC: (2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 10, 11),
    ResourceType.GROUP: (2, 3, 3, 6, 8, 8, 10, 11),
    ResourceType.TRANSACTIONAL_ID: (2, 4, 4, 8, 15),
    ResourceType.CLUSTER: (2, 5, 7, 8, 9, 10, 11, 12),
    ResourceType.USER: (2, 13, 14),
    ResourceType.DELEGATION_TOKEN: (2, 8),
}
NAMES = {
    ResourceType.TOPIC: (*TOPICS, *MISSING),
    ResourceType.GROUP: GROUPS,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONS,
    ResourceType.CLUSTER: (CLUSTER_NAME,),
    ResourceType.USER: ("User:ann", "User:bob", "User:other"),
    ResourceType.DELEGATION_TOKEN: ("unknown",),
}
ALL_ACLS = {
    "resource_type_filter": ResourceType.ANY, "resource_name_filter": None, "pattern_type_filter": PatternType.ANY,
    "principal_filter": None, "host_filter": None, "operation": AclOperation.ANY,
    "permission_type": AclPermissionType.ANY,
}  # fmt: skip


class LoginFromHost(Security):
    """A login by SASL/PLAIN over a connection from a given address of this machine."""

    def __init__(self, user: str, host: str) -> None:
        self._host = host
        super().__init__({
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": user, "sasl.password": USERS[user],
        })  # fmt: skip

    def secure(self, plain: socket.socket, host: str) -> socket.socket:
        """Replace the connection by one from this user's address."""
        peer, timeout = plain.getpeername(), plain.gettimeout()
        plain.close()
        return socket.create_connection(peer, timeout, source_address=(self._host, 0))


class UserClient(Broker):
    """A client of one broker, which logs in as a user on each connection."""

    def __init__(self, bootstrap: str, user: str, host: str) -> None:
        super().__init__(bootstrap)
        self._security = LoginFromHost(user, host)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self.bootstrap, timeout_s=WAIT_S, security=self._security)
        return self._client


class BrokerClients:
    """One broker with its clients: a super user, and each user from each address."""

    def __init__(self, plain: str, login: str) -> None:
        self.admin = Broker(plain)
        self.users = {(user, host): UserClient(login, user, host) for user in USERS for host in HOSTS}
        self.ids: dict[str, bytes] = {}

    def close(self) -> None:
        for broker in (self.admin, *self.users.values()):
            broker.close()

    def ask(self, client: tuple[str, str], asking: PermissionRequest, version: int, about: list[Names]) -> Any:
        """Return the response to a user's request about some names, as plain values."""
        broker = self.users[client]
        broker.begin()
        questions = [asking.question(names._replace(topic_id=self.ids.get(names.topic, NO_TOPIC))) for names in about]
        question = questions[0]
        for more in questions[1:]:
            question = join_requests(question, more)
        broker.ask(asking.api, version, **question)
        return broker.answers[-1][1]

    def set_acls(self, wanted: list[dict[str, Any]]) -> None:
        """Replace all ACLs, and wait until they are in force."""
        deleted = self.admin.ask_quietly("delete_acls", 3, filters=[ALL_ACLS])
        assert {result.error_code for result in deleted.filter_results} == {0}
        made = self.admin.ask_quietly("create_acls", 3, creations=wanted)
        assert {result.error_code for result in made.results} <= {0}
        expected = {tuple(one.values()) for one in wanted}
        wait_until(lambda: acls_of(self.admin) == expected)


@contextmanager
def two_brokers(directory: Path, texts: Mapping[str, str]) -> Iterator[tuple[BrokerClients, BrokerClients]]:
    """Tidelog and Kafka with these settings and their contents, in this order."""
    settings = {**SETTINGS, **texts}
    kafka = ApacheKafka(directory / "kafka", {**AT_ONCE, **settings}, in_shared_jvm=True)
    tidelog = TidelogProcess(directory / "tidelog", settings, port=free_port())
    logins = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    tidelog.overrides["listeners"] = f"PLAINTEXT://{tidelog.host}:{tidelog.port},SASL_PLAINTEXT://{logins[0]}"
    kafka.overrides["listeners"] = f"PLAINTEXT://{kafka.host}:{kafka.port},SASL_PLAINTEXT://{logins[1]}"
    kafka.overrides |= {
        "advertised.listeners": kafka.overrides["listeners"],
        "listeners": f"{kafka.overrides['listeners']},CONTROLLER://{kafka.host}:{kafka.controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    }
    with kafka, tidelog:
        pair = BrokerClients(tidelog.bootstrap, logins[0]), BrokerClients(kafka.bootstrap, logins[1])
        for asked in pair:
            prepare(asked)
        yield pair
        for asked in pair:
            asked.close()


def prepare(asked: BrokerClients) -> None:
    """Give a broker its contents."""
    admin = asked.admin
    until_ready(admin)
    for topic in TOPICS:
        create(admin, topic)
    for group in GROUPS[:2]:
        wait_until(lambda group=group: not commit(admin, group))  # type: ignore[misc]
    wait_until(lambda: not join(admin))
    wait_until(lambda: len(assigned_topics(admin)) == 2)
    wait_until(lambda: not begin_transaction(admin))
    wait_until(lambda: not make_share_state(admin))
    topics = admin.ask_quietly("metadata", 12, topics=None).topics
    asked.ids = {topic.name: topic.topic_id for topic in topics}
    for user in USERS:
        broker = asked.users[user, HOSTS[0]]
        made = broker.ask_quietly("create_delegation_token", 3, owner_principal_name=None, max_lifetime_ms=-1)
        assert not made.error_code
        wait_until(lambda broker=broker: broker.ask_quietly("describe_delegation_token", 3, owners=None).tokens)  # type: ignore[misc]


def commit(broker: Broker, group: str) -> int:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    topics = [{"name": topic, "partitions": [partition]} for topic in TOPICS]
    answer = broker.ask_quietly("offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    return int(max(one.partitions[0].error_code for one in answer.topics))


def join(broker: Broker) -> int:
    """Join the consumer group as its member."""
    answer = broker.ask_quietly(
        "consumer_group_heartbeat", 1, group_id="readers", member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
        subscribed_topic_names=list(TOPICS[:2]), topic_partitions=[],
    )  # fmt: skip
    return int(answer.error_code)


def assigned_topics(broker: Broker) -> set[str]:
    answer = broker.ask_quietly("consumer_group_describe", 1, group_ids=["readers"])
    members = answer.groups[0].members
    return {one.topic_name for member in members for one in member.target_assignment.topic_partitions}


def begin_transaction(broker: Broker) -> int:
    """Begin a transaction with two topics; Kafka ends it after fifteen minutes at the earliest."""
    begun = broker.ask_quietly("init_producer_id", 4, transactional_id="tx", transaction_timeout_ms=900_000)
    if begun.error_code:
        return int(begun.error_code)
    answer = broker.ask_quietly(
        "add_partitions_to_txn", 3, v3_and_below_transactional_id="tx", v3_and_below_producer_id=begun.producer_id,
        v3_and_below_producer_epoch=begun.producer_epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]} for topic in TOPICS[1:]],
    )  # fmt: skip
    answers = answer.results_by_topic_v3_and_below
    return int(max(one.results_by_partition[0].partition_error_code for one in answers))


def make_share_state(broker: Broker) -> int:
    """Create the state of a share partition, and with it the topic of these states.

    Tidelog creates the topic with the state, Kafka with FindCoordinator. Returns the error code.
    """
    topic_id = broker.ask_quietly("metadata", 12, topics=[{"name": TOPICS[0]}]).topics[0].topic_id
    key = f"{GROUPS[0]}:{base64.urlsafe_b64encode(topic_id).decode().rstrip('=')}:0"
    found = broker.ask_quietly("find_coordinator", 6, key_type=2, coordinator_keys=[key])
    partition = {"partition": 0, "state_epoch": 0, "start_offset": 0}
    topics = [{"topic_id": topic_id, "partitions": [partition]}]
    made = broker.ask_quietly("initialize_share_group_state", 0, group_id=GROUPS[0], topics=topics)
    return int(found.coordinators[0].error_code or made.results[0].partitions[0].error_code)


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def acls_of(broker: Broker) -> set[tuple[Any, ...]]:
    response = broker.ask_quietly("describe_acls", 3, **ALL_ACLS)
    assert response.error_code == 0
    return {
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.host, acl.operation,
         acl.permission_type)
        for one in response.resources
        for acl in one.acls
    }  # fmt: skip


def random_acl(generator: random.Random) -> dict[str, Any]:
    """Draw an ACL on a literal name, on all names, or on a prefix of a name."""
    resource_type = generator.choices(list(OPERATIONS), (10, 6, 6, 6, 1, 1))[0]
    name, pattern = generator.choice(NAMES[resource_type]), PatternType.LITERAL
    kind = generator.random()
    if kind < 0.35 and resource_type != ResourceType.CLUSTER:
        name, pattern = name[: generator.randint(1, len(name))], PatternType.PREFIXED
    elif kind < 0.5 and resource_type != ResourceType.CLUSTER:
        name = "*"
    return {
        "resource_type": resource_type, "resource_name": name, "resource_pattern_type": pattern,
        "principal": generator.choices(("User:ann", "User:bob", "User:*", "User:other"), (4, 3, 2, 1))[0],
        "host": generator.choices(("*", *HOSTS), (6, 2, 2))[0],
        "operation": generator.choice(OPERATIONS[resource_type]),
        "permission_type": AclPermissionType.DENY if generator.random() < 0.2 else AclPermissionType.ALLOW,
    }  # fmt: skip
