"""Scripts about the cluster: log directories, leaders, reassignments, quotas, credentials, features, ApiVersions.

The brokers have a static quorum, and no SASL, authorizer or delegation tokens. The scripts about voters, SASL, ACLs and
tokens compare how both brokers answer that.
"""

from __future__ import annotations

import time

from tests.support.questions import Broker
from tests.support.scripts.registry import WAIT_S, create, script, write


@script("describe_cluster")
def describe_cluster(broker: Broker, version: int) -> None:
    for operations in (False, True):
        broker.ask("describe_cluster", version, include_cluster_authorized_operations=operations)
    if version >= 2:
        broker.ask("describe_cluster", version, include_fenced_brokers=True)


@script("describe_log_dirs")
def describe_log_dirs(broker: Broker, version: int) -> None:
    name = f"ld{version}"
    create(broker, name, 2)
    write(broker, name, b"a", b"b")
    for topics in ([{"topic": name, "partitions": [0, 1, 2]}], [{"topic": f"{name}-none", "partitions": [0]}], []):
        broker.ask("describe_log_dirs", version, topics=topics)


@script("alter_replica_log_dirs")
def alter_replica_log_dirs(broker: Broker, version: int) -> None:
    name = f"al{version}"
    create(broker, name)
    for path in ("/no/such", "relative"):
        topics = [{"name": name, "partitions": [0, 1]}, {"name": f"{name}-none", "partitions": [0]}]
        broker.ask("alter_replica_log_dirs", version, dirs=[{"path": path, "topics": topics}])
    broker.ask("alter_replica_log_dirs", version, dirs=[])


@script("elect_leaders")
def elect_leaders(broker: Broker, version: int) -> None:
    name = f"el{version}"
    create(broker, name)
    for kind in (0, 1):
        topics = [{"topic": name, "partitions": [0, 1]}, {"topic": f"{name}-none", "partitions": [0]}]
        broker.ask("elect_leaders", version, election_type=kind, topic_partitions=topics, timeout_ms=5_000)
        broker.ask("elect_leaders", version, election_type=kind, topic_partitions=[], timeout_ms=5_000)


@script("alter_partition_reassignments")
def alter_partition_reassignments(broker: Broker, version: int) -> None:
    name = f"pa{version}"
    create(broker, name)

    def move(topic: str, partition: int, replicas: list[int] | None) -> None:
        partitions = [{"partition_index": partition, "replicas": replicas}]
        asked = [{"name": topic, "partitions": partitions}]
        broker.ask("alter_partition_reassignments", version, topics=asked, timeout_ms=5_000)

    for replicas in ([1], [], [1, 1], [2], [1, 2], [-1], None):
        move(name, 0, replicas)
    move(name, 1, [1])
    move(f"{name}-none", 0, [1])


@script("list_partition_reassignments")
def list_partition_reassignments(broker: Broker, version: int) -> None:
    name = f"lr{version}"
    create(broker, name)
    for topics in (
        None,
        [],
        [{"name": name, "partition_indexes": [0, 1]}],
        [{"name": "none", "partition_indexes": [0]}],
    ):
        broker.ask("list_partition_reassignments", version, topics=topics, timeout_ms=5_000)


def quota(entity: list[tuple[str, str | None]], *changes: tuple[str, float, bool]) -> dict[str, object]:
    """Build one entry of AlterClientQuotas; a change is a key, its value, and whether the key is removed."""
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    ops = [{"key": key, "value": value, "remove": remove} for key, value, remove in changes]
    return {"entity": parts, "ops": ops}


def until_quotas(broker: Broker, version: int, user: str, *keys: str) -> None:
    """Wait until a user has quotas with exactly these keys; Kafka's brokers apply changes after the response."""
    components = [{"entity_type": "user", "match_type": 0, "match": user}]
    deadline = time.monotonic() + WAIT_S
    while True:
        found = broker.ask_quietly("describe_client_quotas", version, components=components, strict=True)
        if {value.key for entry in found.entries or () for value in entry.values} == set(keys):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


@script("alter_client_quotas")
def alter_client_quotas(broker: Broker, version: int) -> None:
    user = f"u{version}"

    def alter(*entries: dict[str, object], only: bool = False) -> None:
        broker.ask("alter_client_quotas", version, entries=list(entries), validate_only=only)

    rate = ("producer_byte_rate", 1e9, False)
    alter(quota([("user", user)], rate), only=True)
    alter(quota([("user", user)], rate), quota([("user", user), ("client-id", None)], rate))
    alter(quota([("user", user)], ("no.such", 1.0, False)))
    alter(quota([("user", user)], ("producer_byte_rate", -1.0, False)))
    alter(quota([("user", user)], ("producer_byte_rate", 1.5, False)))
    alter(quota([("user", user)], ("request_percentage", 1000.5, False)))
    alter(quota([("ip", "10.0.0.1")], ("connection_creation_rate", 100.0, False)))
    alter(quota([("ip", "not an ip")], ("connection_creation_rate", 100.0, False)))
    alter(quota([("ip", "10.0.0.1"), ("user", user)], rate))
    alter(quota([("ip", "10.0.0.1")], rate))
    alter(quota([("group", "x")], rate))
    alter(quota([], rate))
    alter(quota([("user", "")], rate))
    alter(quota([("user", user)]))
    alter(quota([("user", user)], ("consumer_byte_rate", 0.0, True)))
    components = [{"entity_type": "user", "match_type": 0, "match": user}]
    until_quotas(broker, version, user, "producer_byte_rate", "request_percentage")
    broker.ask("describe_client_quotas", version, components=components, strict=False)
    alter(quota([("user", user)], ("producer_byte_rate", 0.0, True), ("request_percentage", 0.0, True)))
    until_quotas(broker, version, user)
    broker.ask("describe_client_quotas", version, components=components, strict=False)
    alter(quota([("user", user), ("client-id", None)], ("producer_byte_rate", 0.0, True)))
    alter(quota([("ip", "10.0.0.1")], ("connection_creation_rate", 0.0, True)))


@script("describe_client_quotas")
def describe_client_quotas(broker: Broker, version: int) -> None:
    user = f"q{version}"
    rate = ("consumer_byte_rate", 1e9, False)
    entries = [quota([("user", user)], rate), quota([("user", user), ("client-id", "c")], rate)]
    broker.ask("alter_client_quotas", version, entries=entries)
    until_quotas(broker, version, user, "consumer_byte_rate")
    for match, kind in ((user, 0), ("none", 0), (None, 1), (None, 2), (None, 0), ("x", 1), (None, 9)):
        for strict in (False, True):
            components = [{"entity_type": "user", "match_type": kind, "match": match}]
            broker.ask("describe_client_quotas", version, components=components, strict=strict)
    for kinds in (["user", "client-id"], ["user", "user"], ["ip", "user"], ["no.such"]):
        components = [{"entity_type": kind, "match_type": 2, "match": None} for kind in kinds]
        broker.ask("describe_client_quotas", version, components=components, strict=False)
    gone = ("consumer_byte_rate", 0.0, True)
    entries = [quota([("user", user)], gone), quota([("user", user), ("client-id", "c")], gone)]
    broker.ask("alter_client_quotas", version, entries=entries)


@script("alter_user_scram_credentials")
def alter_user_scram_credentials(broker: Broker, version: int) -> None:
    user = f"s{version}"

    def upsert(name: str, mechanism: int, iterations: int, salt: bytes = b"salt") -> dict[str, object]:
        words = {"name": name, "mechanism": mechanism, "iterations": iterations}
        return {**words, "salt": salt, "salted_password": b"x" * 32}

    for asked in (
        upsert(user, 1, 4096),
        upsert(user, 2, 8192),
        upsert("", 1, 4096),
        upsert(user, 0, 4096),
        upsert(user, 9, 4096),
        upsert(user, 1, 1),
        upsert(user, 1, 16385),
    ):
        broker.ask("alter_user_scram_credentials", version, upsertions=[asked])
    twice = [upsert(user, 1, 4096), upsert(user, 1, 4096)]
    broker.ask("alter_user_scram_credentials", version, upsertions=twice)
    broker.ask("describe_user_scram_credentials", version, users=[{"name": user}, {"name": "none"}])
    broker.ask("describe_user_scram_credentials", version, users=[{"name": user}, {"name": user}])
    for name, mechanism in ((user, 1), (user, 1), ("none", 1), (user, 0), (user, 2)):
        gone = [{"name": name, "mechanism": mechanism}]
        broker.ask("alter_user_scram_credentials", version, deletions=gone)


@script("update_features")
def update_features(broker: Broker, version: int) -> None:
    for feature, level, kind in (
        ("no.such", 1, 1),
        ("metadata.version", 999, 1),
        ("metadata.version", 0, 1),
        ("", 1, 1),
    ):
        update = {"feature": feature, "max_version_level": level, "upgrade_type": kind}
        fields = {"timeout_ms": 5_000, "feature_updates": [update]}
        broker.ask("update_features", version, **fields, validate_only=True)


@script("unregister_broker")
def unregister_broker(broker: Broker, version: int) -> None:
    for node in (9, -1):
        broker.ask("unregister_broker", version, broker_id=node)


VOTERS = (
    (9, b"d" * 16, None),
    (9, b"d" * 16, "another cluster"),
    (9, bytes(16), None),
    (-1, b"d" * 16, None),
)
"""Node id, directory id and cluster id of voters that do not exist."""


@script("add_raft_voter")
def add_raft_voter(broker: Broker, version: int) -> None:
    """Send AddRaftVoter to the only controller, whose quorum is static."""
    for node, directory, cluster in VOTERS:
        listeners = [{"name": "CONTROLLER", "host": "localhost", "port": 9}]
        fields = {"cluster_id": cluster, "voter_id": node, "voter_directory_id": directory, "listeners": listeners}
        broker.ask("add_raft_voter", version, **fields, timeout_ms=5_000)


@script("remove_raft_voter")
def remove_raft_voter(broker: Broker, version: int) -> None:
    """Send RemoveRaftVoter to the only controller, whose quorum is static."""
    for node, directory, cluster in VOTERS:
        broker.ask("remove_raft_voter", version, cluster_id=cluster, voter_id=node, voter_directory_id=directory)


@script("sasl_handshake")
def sasl_handshake(broker: Broker, version: int) -> None:
    """Send SaslHandshake on a listener without SASL."""
    broker.ask("sasl_handshake", version, mechanism="PLAIN")


@script("sasl_authenticate")
def sasl_authenticate(broker: Broker, version: int) -> None:
    """Send SaslAuthenticate on a listener without SASL."""
    broker.ask("sasl_authenticate", version, auth_bytes=b"\0name\0password")


@script("describe_acls")
def acls(broker: Broker, version: int) -> None:
    words = {"operation": 1, "permission_type": 1}
    of_all = {"resource_type_filter": 1, "pattern_type_filter": 1, **words}
    of_all_users = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    broker.ask("describe_acls", version, **of_all, **of_all_users)
    creation = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*"}
    made = {**creation, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}
    broker.ask("create_acls", version, creations=[made])
    broker.ask("delete_acls", version, filters=[{**of_all, **of_all_users}])


@script("create_delegation_token")
def delegation_tokens(broker: Broker, version: int) -> None:
    broker.ask("create_delegation_token", version, renewers=[], max_lifetime_ms=1000)
    broker.ask("renew_delegation_token", min(version, 2), hmac=b"x", renew_period_ms=1)
    broker.ask("expire_delegation_token", min(version, 2), hmac=b"x", expiry_time_period_ms=1)
    broker.ask("describe_delegation_token", version, owners=None)


@script("api_versions")
def api_versions(broker: Broker, version: int) -> None:
    if version >= 3:
        for name in ("", "a b", "-a"):
            response = broker.ask_quietly(
                "api_versions", version, client_software_name=name, client_software_version="1"
            )
            broker.answers.append((f"api_versions v{version} {name!r}", response.error_code))
