"""Schemas of the records of ``__cluster_metadata``, one class for each of Kafka's record types.

A record's value holds a frame around the message: ``tidelog.protocol.metadata_records.frames``. Source: metadata
``common/metadata/*.json`` of Kafka 4.3; KIP-631, KIP-858 (directories), KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import (
    Message,
    Struct,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)

LEADER_UNCHANGED = -2
"""Value of ``leader`` in a PartitionChangeRecord that does not change the leader."""
UNFINISHED_DELETIONS_TAG, FINISHED_DELETIONS_TAG = 7401, 7402
"""Tags that no version of Kafka uses; tagged fields that a reader does not know are skipped (KIP-482)."""


class QuotaEntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class RegisteredEndpoint(Struct):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class RegisteredFeature(Struct):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class TopicRecord(Message, api_key=2, versions="0", flexible="0+"):
    name: str = string()
    topic_id: bytes = uuid()


class PartitionRecord(Message, api_key=3, versions="0-2", flexible="0+"):
    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[bytes] = array(uuid, "1+")
    eligible_leader_replicas: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=1)
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=2)


class PartitionChangeRecord(Message, api_key=5, versions="0-2", flexible="0+"):
    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    isr: list[int] | None = array(int32, nullable="0+", default=None, tag=0)
    leader: int = int32(default=LEADER_UNCHANGED, tag=1)
    replicas: list[int] | None = array(int32, nullable="0+", default=None, tag=2)
    removing_replicas: list[int] | None = array(int32, nullable="0+", default=None, tag=3)
    adding_replicas: list[int] | None = array(int32, nullable="0+", default=None, tag=4)
    leader_recovery_state: int = int8(default=-1, tag=5)
    directories: list[bytes] | None = array(uuid, "1+", nullable="1+", default=None, tag=8)
    eligible_leader_replicas: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=6)
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=7)


class RemoveTopicRecord(Message, api_key=9, versions="0", flexible="0+"):
    topic_id: bytes = uuid()


class ClearElrRecord(Message, api_key=28, versions="0", flexible="0+"):
    topic_name: str = string()


class ConfigRecord(Message, api_key=4, versions="0", flexible="0+"):
    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable="0+")


class ClientQuotaRecord(Message, api_key=14, versions="0", flexible="0+"):
    entity: list[QuotaEntityData] = array(QuotaEntityData)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class ProducerIdsRecord(Message, api_key=15, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64()


class FeatureLevelRecord(Message, api_key=12, versions="0", flexible="0+"):
    name: str = string()
    feature_level: int = int16()


class RegisterBrokerRecord(Message, api_key=0, versions="0-4", flexible="0+"):
    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean("2+")
    incarnation_id: bytes = uuid()
    broker_epoch: int = int64()
    end_points: list[RegisteredEndpoint] = array(RegisteredEndpoint)
    features: list[RegisteredFeature] = array(RegisteredFeature)
    rack: str | None = string(nullable="0+")
    fenced: bool = boolean(default=True)
    in_controlled_shutdown: bool = boolean("1+")
    log_dirs: list[bytes] = array(uuid, "3+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "4+", nullable="4+", default=None, tag=1)


class UnregisterBrokerRecord(Message, api_key=1, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64()


class FenceBrokerRecord(Message, api_key=7, versions="0", flexible="0+"):
    id: int = int32()
    epoch: int = int64()


class UnfenceBrokerRecord(Message, api_key=8, versions="0", flexible="0+"):
    id: int = int32()
    epoch: int = int64()


class BrokerRegistrationChangeRecord(Message, api_key=17, versions="0-3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64()
    fenced: int = int8(tag=0)
    in_controlled_shutdown: int = int8("1+", tag=1)
    log_dirs: list[bytes] = array(uuid, "2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "3+", nullable="3+", default=None, tag=3)


class RegisterControllerRecord(Message, api_key=27, versions="0", flexible="0+"):
    controller_id: int = int32()
    incarnation_id: bytes = uuid()
    zk_migration_ready: bool = boolean()
    end_points: list[RegisteredEndpoint] = array(RegisteredEndpoint)
    features: list[RegisteredFeature] = array(RegisteredFeature)


class UserScramCredentialRecord(Message, api_key=11, versions="0", flexible="0+"):
    name: str = string()
    mechanism: int = int8()
    salt: bytes = binary()
    stored_key: bytes = binary()
    server_key: bytes = binary()
    iterations: int = int32()


class RemoveUserScramCredentialRecord(Message, api_key=22, versions="0", flexible="0+"):
    name: str = string()
    mechanism: int = int8()


class AccessControlEntryRecord(Message, api_key=18, versions="0", flexible="0+"):
    id: bytes = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class RemoveAccessControlEntryRecord(Message, api_key=19, versions="0", flexible="0+"):
    id: bytes = uuid()


class DelegationTokenRecord(Message, api_key=10, versions="0", flexible="0+"):
    owner: str = string()
    requester: str = string()
    renewers: list[str] = array(string)
    issue_timestamp: int = int64()
    max_timestamp: int = int64()
    expiration_timestamp: int = int64()
    token_id: str = string()


class RemoveDelegationTokenRecord(Message, api_key=26, versions="0", flexible="0+"):
    token_id: str = string()


class BeginTransactionRecord(Message, api_key=23, versions="0", flexible="0+"):
    name: str | None = string(nullable="0+", default=None, tag=0)


class EndTransactionRecord(Message, api_key=24, versions="0", flexible="0+"):
    """End of a metadata transaction; it has no fields."""


class AbortTransactionRecord(Message, api_key=25, versions="0", flexible="0+"):
    reason: str | None = string(nullable="0+", default=None, tag=0)


class DeletedTopic(Struct):
    name: str = string()
    topic_id: bytes = uuid()


class NoOpRecord(Message, api_key=20, versions="0", flexible="0+"):
    """A record that changes nothing for Kafka, which skips the tagged fields. They are Tidelog's own:
    ``unfinished_deletions`` names deleted topics whose logs may still exist, ``finished_deletions`` topics whose logs
    are deleted."""

    unfinished_deletions: list[DeletedTopic] = array(DeletedTopic, tag=UNFINISHED_DELETIONS_TAG)
    finished_deletions: list[bytes] = array(uuid, tag=FINISHED_DELETIONS_TAG)


class ZkMigrationStateRecord(Message, api_key=21, versions="0", flexible="0+"):
    zk_migration_state: int = int8()


RECORD_TYPES: dict[int, type[Message]] = {
    record.API_KEY: record
    for record in (
        TopicRecord,
        PartitionRecord,
        PartitionChangeRecord,
        RemoveTopicRecord,
        ClearElrRecord,
        ConfigRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        FeatureLevelRecord,
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        FenceBrokerRecord,
        UnfenceBrokerRecord,
        BrokerRegistrationChangeRecord,
        RegisterControllerRecord,
        UserScramCredentialRecord,
        RemoveUserScramCredentialRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        DelegationTokenRecord,
        RemoveDelegationTokenRecord,
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        NoOpRecord,
        ZkMigrationStateRecord,
    )
}
"""Record type -> schema."""
