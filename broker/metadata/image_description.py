"""Metadata image in plain values, for people and for JSON: names in place of numbers, and no secrets.

Users' SCRAM keys are left out, and configs that the caller does not want to be shown have the value ``[redacted]``: the
output may be pasted into a ticket. Source: the nodes of Kafka's metadata shell.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidelog.broker.metadata.metadata_image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    AccessRule,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    TopicState,
)

Description = dict[str, Any]
REDACTED = "[redacted]"

_RESOURCES = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    CLIENT_METRICS_RESOURCE: "client-metrics",
    GROUP_RESOURCE: "group",
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ACL_RESOURCES = {
    2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER",
}  # fmt: skip
_ACL_PATTERNS = {3: "LITERAL", 4: "PREFIXED"}
_ACL_OPERATIONS = {
    2: "ALL", 3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE", 9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS", 11: "ALTER_CONFIGS", 12: "IDEMPOTENT_WRITE", 13: "CREATE_TOKENS", 14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}  # fmt: skip
_ACL_PERMISSIONS = {2: "DENY", 3: "ALLOW"}


def describe_image(image: MetadataImage, is_shown: Callable[[int, str], bool]) -> Description:
    """Return an image as JSON values, sorted, so that equal images have equal descriptions.

    ``is_shown`` says whether the value of a resource type's config is shown.
    """
    configs = image.configs
    return {
        "offset": image.offset,
        "epoch": image.epoch,
        "timestamp": image.timestamp_ms,
        "nextProducerId": image.producer_ids,
        "features": dict(sorted(image.features.items())),
        "controllers": [_describe_controller(one) for _, one in sorted(image.controllers.items())],
        "brokers": [_describe_broker(one) for _, one in sorted(image.brokers.items())],
        "topics": [_describe_topic(image.topics[key]) for _, key in sorted(image.topic_ids.items())],
        "configs": [_describe_configs(kind, name, configs[kind, name], is_shown) for kind, name in sorted(configs)],
        "quotas": _describe_quotas(image),
        "users": [
            {"name": name, "mechanism": _MECHANISMS.get(mechanism, str(mechanism)), "iterations": one.iterations}
            for (name, mechanism), one in sorted(image.scram.items(), key=lambda item: item[0])
        ],
        "acls": sorted((_describe_acl(rule) for rule in image.acls.values()), key=lambda acl: tuple(acl.values())),
        "tokens": sorted(image.tokens),
    }


def uuid_text(value: bytes) -> str:
    """Return an id as Kafka prints it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _describe_controller(controller: ControllerRegistration) -> Description:
    return {
        "id": controller.controller_id,
        "incarnation": uuid_text(controller.incarnation_id),
        "endpoints": _describe_endpoints(controller.endpoints),
        "features": _describe_ranges(controller.features),
    }


def _describe_broker(broker: BrokerRegistration) -> Description:
    cordoned = broker.cordoned_directories
    return {
        "id": broker.broker_id,
        "epoch": broker.broker_epoch,
        "incarnation": uuid_text(broker.incarnation_id),
        "rack": broker.rack,
        "fenced": broker.is_fenced,
        "inControlledShutdown": broker.in_controlled_shutdown,
        "endpoints": _describe_endpoints(broker.endpoints),
        "features": _describe_ranges(broker.features),
        "directories": _uuid_texts(broker.directories),
        "cordonedDirectories": None if cordoned is None else _uuid_texts(cordoned),
    }


def _describe_endpoints(endpoints: Iterable[Endpoint]) -> list[Description]:
    return [
        {"name": one.name, "host": one.host, "port": one.port, "securityProtocol": _protocol_name(one)}
        for one in endpoints
    ]


def _protocol_name(endpoint: Endpoint) -> str:
    number = endpoint.security_protocol
    return _PROTOCOLS[number] if 0 <= number < len(_PROTOCOLS) else str(number)


def _describe_ranges(features: Mapping[str, tuple[int, int]]) -> Description:
    return {name: list(levels) for name, levels in sorted(features.items())}


def _describe_topic(topic: TopicState) -> Description:
    return {
        "name": topic.name,
        "id": uuid_text(topic.topic_id),
        "partitions": [_describe_partition(number, one) for number, one in enumerate(topic.partitions)],
    }


def _describe_partition(number: int, state: PartitionState) -> Description:
    return {
        "partition": number,
        "leader": state.leader,
        "leaderEpoch": state.leader_epoch,
        "partitionEpoch": state.partition_epoch,
        "replicas": list(state.replicas),
        "isr": list(state.isr),
        "adding": list(state.adding),
        "removing": list(state.removing),
        "elr": list(state.elr),
        "lastKnownElr": list(state.last_known_elr),
        "recovering": state.is_recovering,
        "directories": _uuid_texts(state.directories),
    }


def _uuid_texts(ids: Iterable[bytes]) -> list[str]:
    return [uuid_text(one) for one in ids]


def _describe_configs(
    kind: int, name: str, values: Mapping[str, str], is_shown: Callable[[int, str], bool]
) -> Description:
    return {
        "type": _RESOURCES.get(kind, str(kind)),
        "name": name,
        "values": {key: value if is_shown(kind, key) else REDACTED for key, value in sorted(values.items())},
    }


def _describe_quotas(image: MetadataImage) -> list[Description]:
    """Return the quotas by entity; a default comes before the names of its type."""
    entities = sorted(image.quotas, key=lambda entity: [(kind, name or "", name is not None) for kind, name in entity])
    return [{"entity": dict(entity), "values": dict(sorted(image.quotas[entity].items()))} for entity in entities]


def _describe_acl(rule: AccessRule) -> Description:
    return {
        "resourceType": _ACL_RESOURCES.get(rule.resource_type, str(rule.resource_type)),
        "resourceName": rule.resource_name,
        "patternType": _ACL_PATTERNS.get(rule.pattern_type, str(rule.pattern_type)),
        "principal": rule.principal,
        "host": rule.host,
        "operation": _ACL_OPERATIONS.get(rule.operation, str(rule.operation)),
        "permission": _ACL_PERMISSIONS.get(rule.permission, str(rule.permission)),
    }
