"""Members in a secured cluster of Apache Kafka with its authorizer: controllers, a Java broker and two members.

All of them authenticate each other, by passwords or by certificates; what a member may do is said by ACLs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from benchmarks.rivals.process import BrokerError
from tests.support.cluster_clients import WAIT_S, Writer, digests, isr, leader, values
from tests.support.kraft_node import wait_until
from tests.support.secured_cluster import (
    JAVA,
    MEMBER,
    SECOND,
    SECRET,
    SecuredCluster,
    Way,
    name_of,
)

pytestmark = [pytest.mark.java, pytest.mark.slow]
ALL = [MEMBER, SECOND, JAVA]
WAYS = [Way("SSL", "SASL_SSL")]
"""Certificates at the controllers and SCRAM between brokers; all others with TIDELOG_SECURED_CLUSTER=all."""
if os.environ.get("TIDELOG_SECURED_CLUSTER") == "all":
    WAYS += [Way("SASL_SSL", "SASL_SSL"), Way("SASL_SSL", "SSL"), Way("SSL", "SSL")]
SETTINGS = {
    "replica.lag.time.max.ms": "3000",
    "broker.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
}


def allow(admin: AdminClient, principal: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Add an ACL."""
    rule = AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", operation, AclPermissionType.ALLOW)
    (future,) = admin.create_acls([rule]).values()
    future.result()


def allow_cluster(cluster: SecuredCluster, principal: str, operation: AclOperation) -> None:
    """Add an ACL of the cluster."""
    kind = ResourceType.BROKER  # librdkafka's name of the cluster
    allow(admin_of(cluster.java.bootstrap), principal, kind, "kafka-cluster", operation)


def admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def enrol(cluster: SecuredCluster) -> None:
    """Give brokers and ``ann`` their passwords, where there are any."""
    admin = admin_of(cluster.java.bootstrap)
    if cluster.way.brokers == "SASL_SSL":
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        users = [*map(name_of, ALL), "ann"]
        wanted: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(one, info, SECRET.format(one).encode()) for one in users
        ]
        for future in admin.alter_user_scram_credentials(wanted).values():
            future.result()


@pytest.fixture(scope="module", params=WAYS, ids=str)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """A running cluster. A member that has no right to be one is refused with a line that says so."""
    cluster = SecuredCluster(tmp_path_factory.mktemp("secured"), request.param, SETTINGS)
    with cluster.controller, cluster.java:
        enrol(cluster)
        settings = cluster.member.overrides
        cluster.member.overrides = {**settings, "initial.broker.registration.timeout.ms": "3000"}
        with pytest.raises(BrokerError, match="ClusterAuthorizationFailed"):
            cluster.member.start()
        cluster.member.overrides = settings
        for one in (MEMBER, SECOND):
            for operation in (AclOperation.CLUSTER_ACTION, AclOperation.CREATE):  # internal topics are created, too
                for principal in cluster.way.principals(name_of(one)):
                    allow_cluster(cluster, principal, operation)
        with cluster.member, cluster.second:
            yield cluster


def create(cluster: SecuredCluster, name: str, *replicas: list[int]) -> None:
    """Create a topic whose partitions have these replicas, through a member."""
    new = NewTopic(name, len(replicas), replica_assignment=list(replicas), config={"min.insync.replicas": "2"})
    admin = admin_of(cluster.member.bootstrap)
    (future,) = admin.create_topics([new]).values()
    future.result()
    for node in cluster.nodes.values():
        wait_until(lambda node=node: isr(node, name) == sorted(replicas[0]), f"{name} in sync", WAIT_S)  # type: ignore[misc]


def test_replicas_follow_and_lead_over_secured_connections(cluster: SecuredCluster) -> None:
    create(cluster, "turns", ALL)
    killed = set()
    with Writer(cluster.bootstrap, "turns") as writer:
        for _ in range(2):
            writer.wait_for(50)
            number = leader(cluster.bootstrap, "turns")
            others = ",".join(node.bootstrap for one, node in cluster.nodes.items() if one != number)
            cluster.nodes[number].kill()
            wait_until(lambda number=number, others=others: leader(others, "turns") not in (number, -1), "a leader")  # type: ignore[misc]
            cluster.nodes[number].start()
            wait_until(lambda: isr(cluster.java, "turns") == sorted(ALL), "all in sync")
            killed.add(number)
        writer.wait_for(50)
    assert len(killed) == 2
    assert writer.errors == []
    assert values(cluster.bootstrap, "turns") == writer.acknowledged
    files = [node.data_directory / "turns-0" for node in cluster.nodes.values()]
    wait_until(lambda: len({str(digests(one)) for one in files}) == 1, "equal files")


def test_a_transaction_over_all_brokers_is_committed_or_aborted(cluster: SecuredCluster) -> None:
    """Leave to write and markers go from broker to broker, as ClusterAction allows."""
    create(cluster, "orders", [MEMBER, SECOND, JAVA], [SECOND, JAVA, MEMBER], [JAVA, MEMBER, SECOND])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    for number, ends in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("orders", str(number), partition=partition)
        ends(WAIT_S)
    assert sorted(values(cluster.bootstrap, "orders")) == [b"0"] * 3 + [b"2"] * 3


def test_clients_have_the_rights_that_the_clusters_acls_give(cluster: SecuredCluster) -> None:
    """A member answers by the metadata's ACLs; what it forwards is judged by the controller for the client."""
    ann = AdminClient(cluster.client(MEMBER, "ann"))
    (refused,) = ann.create_topics([NewTopic("anns", 1, 1)]).values()
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        refused.result()
    principal = "User:ann" if cluster.way.brokers == "SASL_SSL" else "User:CN=ann"
    root = admin_of(cluster.second.bootstrap)
    for operation in (AclOperation.CREATE, AclOperation.WRITE, AclOperation.DESCRIBE):
        allow(root, principal, ResourceType.TOPIC, "anns", operation)

    def is_created() -> bool:
        (future,) = ann.create_topics([NewTopic("anns", 1, 1)]).values()
        return future.exception() is None

    wait_until(is_created, "the right to create")
    delivery_errors: list[object] = []
    producer = Producer(cluster.client(MEMBER, "ann"))
    producer.produce("anns", b"mine", on_delivery=lambda error, _: delivery_errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert delivery_errors == [None]
    assert values(cluster.bootstrap, "anns") == [b"mine"]
