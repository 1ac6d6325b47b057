"""Random ACLs and random requests: Apache Kafka's StandardAuthorizer and Tidelog refuse and hide the same.

A round deletes the ACLs of the round before, creates a random set. It asks random questions of every API about names
that are there and names that are not. Compared are authorization errors, names that are told or left out, and the bits
of authorized operations; what else an allowed request gets is the matter of ``test_answers``. The asking client needs
ALTER of the cluster to change the ACLs, and Apache Kafka's node CLUSTER_ACTION: both stay, and are never denied.
``TIDELOG_LONG`` asks 1,000 questions.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.access_questions import QUESTIONS, Asking, Names
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.compared import OVERRIDES, differences, until_ready
from tests.support.questions import Broker
from tests.support.scripts.registry import create
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.protocol.acl import CLUSTER_NAME, AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.java, pytest.mark.slow]

ROUNDS, QUESTIONS_PER_ROUND = (20, 50) if os.environ.get("TIDELOG_LONG") else (5, 32)
ACLS_PER_ROUND = 30
SEED = 20261122
WAIT_S = 60.0
AUTHORIZATION_ERRORS = {29, 30, 31, 53, 65}
TOPICS = ("orders", "orders-eu", "bills")
MISSING = ("orders-none", "zebra")
GROUPS = ("app", "app-2", "reports")
TRANSACTIONS = ("tx", "tx-2", "other")
RESOURCES = {
    ResourceType.TOPIC: (*TOPICS, *MISSING, "o", "*"),
    ResourceType.GROUP: (*GROUPS, "ap", "*"),
    ResourceType.TRANSACTIONAL_ID: (*TRANSACTIONS, "t", "*"),
}
OPERATIONS = {
    ResourceType.TOPIC: (2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 10, 11),
    ResourceType.GROUP: (2, 3, 3, 6, 8, 8, 10, 11),
    ResourceType.TRANSACTIONAL_ID: (2, 4, 4, 8, 15),
    ResourceType.CLUSTER: (5, 8, 10, 11, 12),
}
Pair = tuple[Broker, Broker]
KEPT = (AclOperation.ALTER, AclOperation.CLUSTER_ACTION)
TOLD = {"name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "key"}


def creation(operation: int, resource_type: int, name: str, **more: Any) -> dict[str, Any]:
    return {
        "resource_type": resource_type, "resource_name": name, "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:ANONYMOUS", "host": "*", "operation": operation,
        "permission_type": AclPermissionType.ALLOW, **more,
    }  # fmt: skip


BASE = [creation(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in KEPT]


def random_acl(generator: random.Random) -> dict[str, Any]:
    resource_type = generator.choices(list(OPERATIONS), (5, 3, 3, 2))[0]
    is_cluster = resource_type == ResourceType.CLUSTER
    name = CLUSTER_NAME if is_cluster else generator.choice(RESOURCES[resource_type])
    prefixed = not is_cluster and name != "*" and generator.random() < 0.35
    denies = not is_cluster and generator.random() < 0.2
    return creation(
        generator.choice(OPERATIONS[resource_type]),
        resource_type,
        name,
        resource_pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal=generator.choices(("User:ANONYMOUS", "User:*", "User:other"), (6, 2, 2))[0],
        host=generator.choices(("*", "127.0.0.1", "10.1.1.1"), (7, 2, 1))[0],
        permission_type=AclPermissionType.DENY if denies else AclPermissionType.ALLOW,
    )


def filter_of(resource_type: int, operation: int = AclOperation.ANY) -> dict[str, Any]:
    return {
        "resource_type_filter": resource_type, "resource_name_filter": None, "pattern_type_filter": PatternType.ANY,
        "principal_filter": None, "host_filter": None, "operation": operation, "permission_type": AclPermissionType.ANY,
    }  # fmt: skip


def acls_of(broker: Broker) -> set[tuple[Any, ...]]:
    response = broker.ask_quietly("describe_acls", 3, **filter_of(ResourceType.ANY))
    assert response.error_code == 0
    return {
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.host, acl.operation,
         acl.permission_type)
        for one in response.resources
        for acl in one.acls
    }  # fmt: skip


def set_acls(broker: Broker, wanted: list[dict[str, Any]]) -> None:
    """Replace all ACLs but the base, and wait until they are in force."""
    clusters = [filter_of(ResourceType.CLUSTER, operation) for operation in (5, 8, 10, 11, 12)]
    filters = [filter_of(resource_type) for resource_type in RESOURCES] + clusters
    deleted = broker.ask_quietly("delete_acls", 3, filters=filters)
    assert {result.error_code for result in deleted.filter_results} == {0}
    made = broker.ask_quietly("create_acls", 3, creations=[*BASE, *wanted])
    assert {result.error_code for result in made.results} == {0}
    expected = {tuple(one.values()) for one in (*BASE, *wanted)}
    deadline = time.monotonic() + WAIT_S
    while acls_of(broker) != expected:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def seen(value: Any, name: str = "") -> Any:
    """The part of an answer that authorization decides: its errors, names that are told, bits."""
    if isinstance(value, dict):
        kept = {key: seen(item, key) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None}
    if name == "configs":
        return bool(value)  # Tidelog has keys of its own
    if isinstance(value, list):
        return sorted((seen(item) for item in value if isinstance(item, dict)), key=repr)
    if name.endswith("error_code"):
        return value if value in AUTHORIZATION_ERRORS else "allowed"
    if name in TOLD or name.endswith("authorized_operations"):
        return value
    return None


@pytest.fixture(scope="module", params=[False, True], ids=["deny by default", "allow.everyone.if.no.acl.found"])
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both brokers, prepared by a client that may do everything, then started again without such a client."""
    directory = tmp_path_factory.mktemp("authorization")
    texts = {
        **OVERRIDES, "authorizer.class.name": STANDARD_AUTHORIZER,
        "allow.everyone.if.no.acl.found": str(request.param).lower(),
    }  # fmt: skip
    for users in ("User:ANONYMOUS", "User:admin"):
        both = {**texts, "super.users": users}
        kafka = ApacheKafka(directory / "kafka", both)
        with kafka as theirs, TidelogProcess(directory / "tidelog", both) as ours:
            pair = Broker(ours.bootstrap), Broker(theirs.bootstrap)
            if users == "User:ANONYMOUS":
                for broker in pair:
                    prepare(broker)
            else:
                yield pair
            for broker in pair:
                broker.close()


def prepare(broker: Broker) -> None:
    until_ready(broker)
    for topic in TOPICS:
        create(broker, topic)
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    for group in GROUPS[:2]:
        commit = {"group_id": group, "topics": [{"name": "orders", "partitions": [partition]}]}
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = broker.ask_quietly("offset_commit", 8, generation_id_or_member_epoch=-1, **commit)
            if not answer.topics[0].partitions[0].error_code:
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
    set_acls(broker, [])


def ids_of(broker: Broker) -> dict[str, bytes]:
    response = broker.ask_quietly("metadata", 12, topics=None)
    return {topic.name: topic.topic_id for topic in response.topics}


def test_the_same_is_refused_and_hidden(brokers: tuple[Broker, Broker]) -> None:
    generator = random.Random(SEED)
    everything = [creation(AclOperation.ALL, kind, "*") for kind in (ResourceType.TOPIC, ResourceType.GROUP)]
    for broker in brokers:
        set_acls(broker, everything)
    ids = [ids_of(broker) for broker in brokers]
    ranges = [broker.versions() for broker in brokers]
    found = []
    for _ in range(ROUNDS):
        acls = [random_acl(generator) for _ in range(ACLS_PER_ROUND)]
        for broker in brokers:
            set_acls(broker, acls)
        for _ in range(QUESTIONS_PER_ROUND):
            asking = generator.choice(QUESTIONS)
            key = ApiKey[asking.api.upper()]
            if not all(key in served for served in ranges):
                continue
            low, high = (max(served[key][0] for served in ranges), min(served[key][1] for served in ranges))
            version = generator.randint(max(low, asking.since), high)
            names = Names(
                generator.choice((*TOPICS, *MISSING)), b"", generator.choice(GROUPS), generator.choice(TRANSACTIONS)
            )
            answers = [ask(broker, asking, version, names, known) for broker, known in zip(brokers, ids, strict=True)]
            found += [
                f"{asking.api} v{version} {names} {difference} with {acls}" for difference in differences(*answers)
            ]
    assert not found, "\n".join(found[:20])


def ask(broker: Broker, asking: Asking, version: int, names: Names, ids: dict[str, bytes]) -> Any:
    broker.begin()
    about = names._replace(topic_id=ids.get(names.topic, bytes(range(16))))
    broker.ask(asking.api, version, **asking.question(about))
    return seen(broker.answers[-1][1])
