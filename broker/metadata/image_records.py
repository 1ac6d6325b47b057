"""Records that build an image, as a snapshot of ``__cluster_metadata`` holds them.

The level of ``metadata.version`` decides which fields are written: a broker's controlled shutdown from 7 (3.3-IV3), its
migration from ZooKeeper from 8 (3.4-IV0); directories from 17 (3.7-IV2), eligible leader replicas from 23 (4.0-IV1),
cordoned directories from 30 (4.3-IV0). The record of that level comes first, since it says how to read the others.
Source: ImageWriter, MetadataVersion and the images' ``write`` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidelog.broker.metadata.metadata_image import (
    AccessRule,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    Resource,
    ScramState,
    TokenState,
    TopicState,
)
from tidelog.protocol.metadata_records import records
from tidelog.protocol.schema.fields import Message

METADATA_VERSION = "metadata.version"
_WITH_SHUTDOWN, _WITH_MIGRATION, _WITH_DIRECTORIES, _WITH_ELR = 7, 8, 17, 23
WITH_CORDONED = 30
"""Level of metadata.version from which a broker's registration has cordoned directories (4.3-IV0)."""


class VersionedRecord(NamedTuple):
    """A metadata record, and the version in which it is written."""

    record: Message
    version: int = 0


def records_of_image(image: MetadataImage) -> Iterator[VersionedRecord]:
    """Yield the records that turn an empty image into ``image``."""
    level = image.features.get(METADATA_VERSION, _WITH_SHUTDOWN)
    yield from _feature_records(image)
    for broker in image.brokers.values():
        yield record_of_broker(broker, level)
    for controller in image.controllers.values():
        yield VersionedRecord(_record_of_controller(controller))
    for topic in image.topics.values():
        yield from records_of_topic(topic, level)
    for resource, values in image.configs.items():
        yield from config_records(resource, {}, values)
    yield from _quota_records(image)
    if image.producer_ids:
        yield VersionedRecord(records.ProducerIdsRecord(broker_id=-1, next_producer_id=image.producer_ids))
    yield from _access_records(image)


def _feature_records(image: MetadataImage) -> Iterator[VersionedRecord]:
    names = sorted(image.features, key=lambda name: (name != METADATA_VERSION, name))
    for name in names:
        yield VersionedRecord(records.FeatureLevelRecord(name=name, feature_level=image.features[name]))


def record_of_broker(broker: BrokerRegistration, level: int) -> VersionedRecord:
    """Return a broker's registration in the version of a ``metadata.version`` level."""
    version = sum(level >= first for first in (_WITH_SHUTDOWN, _WITH_MIGRATION, _WITH_DIRECTORIES, WITH_CORDONED))
    cordoned = broker.cordoned_directories
    record = records.RegisterBrokerRecord(
        broker_id=broker.broker_id,
        is_migrating_zk_broker=broker.is_migrating_zk_broker,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=_endpoint_structs(broker.endpoints),
        features=_feature_structs(broker.features),
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories) if level >= _WITH_DIRECTORIES else [],
        cordoned_log_dirs=list(cordoned) if cordoned is not None and level >= WITH_CORDONED else None,
    )
    return VersionedRecord(record, version)


def _record_of_controller(controller: ControllerRegistration) -> records.RegisterControllerRecord:
    return records.RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.is_zk_migration_ready,
        end_points=_endpoint_structs(controller.endpoints),
        features=_feature_structs(controller.features),
    )


def records_of_topic(topic: TopicState, level: int) -> Iterator[VersionedRecord]:
    """Yield a topic's record and those of its partitions."""
    yield VersionedRecord(records.TopicRecord(name=topic.name, topic_id=topic.topic_id))
    for number, state in enumerate(topic.partitions):
        yield record_of_partition(topic.topic_id, number, state, level)


def record_of_partition(topic_id: bytes, number: int, state: PartitionState, level: int) -> VersionedRecord:
    """Return one partition's record in the version of a ``metadata.version`` level."""
    has_elr = level >= _WITH_ELR
    record = records.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(state.replicas),
        isr=list(state.isr),
        removing_replicas=list(state.removing),
        adding_replicas=list(state.adding),
        leader=state.leader,
        leader_recovery_state=int(state.is_recovering),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        directories=list(state.directories) if level >= _WITH_DIRECTORIES else [],
        eligible_leader_replicas=list(state.elr) if has_elr and state.elr else None,
        last_known_elr=list(state.last_known_elr) if has_elr and state.last_known_elr else None,
    )
    return VersionedRecord(record, (level >= _WITH_DIRECTORIES) + has_elr)


def has_directories(level: int) -> bool:
    """Return whether partition records name the replicas' log directories at a ``metadata.version`` level."""
    return level >= _WITH_DIRECTORIES


def change_version(level: int) -> int:
    """Return the version of a PartitionChangeRecord at a ``metadata.version`` level."""
    return has_directories(level) + (level >= _WITH_ELR)


def config_records(resource: Resource, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[VersionedRecord]:
    """Yield the records that replace the configs ``old`` of a resource by ``new``."""
    kind, name = resource
    for key in [*new, *(key for key in old if key not in new)]:
        if old.get(key) != new.get(key):
            record = records.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=new.get(key))
            yield VersionedRecord(record)


def _quota_records(image: MetadataImage) -> Iterator[VersionedRecord]:
    for entity, values in image.quotas.items():
        parts = [records.QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        for key, value in values.items():
            yield VersionedRecord(records.ClientQuotaRecord(entity=parts, key=key, value=value))


def acl_record(acl_id: bytes, rule: AccessRule) -> records.AccessControlEntryRecord:
    """Return the record that sets one ACL."""
    return records.AccessControlEntryRecord(
        id=acl_id,
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def _access_records(image: MetadataImage) -> Iterator[VersionedRecord]:
    """Yield ACLs, SCRAM credentials and delegation tokens."""
    for acl_id, rule in image.acls.items():
        yield VersionedRecord(acl_record(acl_id, rule))
    for (user, mechanism), credential in image.scram.items():
        yield VersionedRecord(scram_record(user, mechanism, credential))
    for token in image.tokens.values():
        yield VersionedRecord(token_record(token))


def scram_record(user: str, mechanism: int, credential: ScramState) -> records.UserScramCredentialRecord:
    """Return the record that sets a user's SCRAM credential."""
    return records.UserScramCredentialRecord(
        name=user,
        mechanism=mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def token_record(token: TokenState) -> records.DelegationTokenRecord:
    """Return the record that creates or changes a delegation token."""
    return records.DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issued_ms,
        max_timestamp=token.max_ms,
        expiration_timestamp=token.expires_ms,
        token_id=token.token_id,
    )


def _endpoint_structs(endpoints: tuple[Endpoint, ...]) -> list[records.RegisteredEndpoint]:
    return [
        records.RegisteredEndpoint(name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol)
        for one in endpoints
    ]


def _feature_structs(ranges: Mapping[str, tuple[int, int]]) -> list[records.RegisteredFeature]:
    return [
        records.RegisteredFeature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in ranges.items()
    ]
