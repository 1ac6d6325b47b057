"""Audit lines of changes that a member forwarded: what was asked, and what the active controller answered.

A change that a lone node makes too has the same line there (``tidelog.broker.security.changes``). A change whose
answer was lost with the connection to the controller has no line.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from tidelog.broker.handlers.alter_user_scram_credentials import changes_of, note_credentials
from tidelog.broker.loop.steps import Steps
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.security.audit import logger as audit_logger
from tidelog.broker.security.changes import Lines, note_acls, note_configs, note_line, note_quotas
from tidelog.protocol.api_keys import ApiKey, response_header_version
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.header import decode_request_header, decode_response_header
from tidelog.protocol.schema.fields import Message

logger = logging.getLogger(__name__)

LinesOf = Callable[[RequestContext, Any, Any], Lines]
"""Function that writes the audit lines of a request and its response, one in each step."""


def note_forwarded(context: RequestContext, frame: memoryview, response: memoryview) -> Steps[None]:
    """Write the audit lines of a request that the controller has answered, one in each step."""
    header, start = decode_request_header(frame)
    lines_of = LINES.get(header.api_key)
    if lines_of is None or not audit_logger.isEnabledFor(logging.INFO):
        return
    asked: type[Message] = importlib.import_module(REGISTRY[header.api_key].module).Request
    answered: type[Message] = getattr(
        importlib.import_module(asked.__module__), asked.__name__.removesuffix("Request") + "Response"
    )
    version = header.api_version
    try:
        _, body = decode_response_header(response, response_header_version(header.api_key, version))
        request, _ = yield from asked.decode_in_steps(frame, start, version)
        answer, _ = yield from answered.decode_in_steps(response, body, version)
    except InvalidRequestError as error:
        logger.warning("cannot read a controller's answer, so its change has no line in the audit log: %s", error)
        return
    yield from (None for _ in lines_of(context, request, answer))


def topics_created(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write a line for each new topic."""
    if not request.validate_only:
        for topic in successes_of(response.topics):
            yield from note_line("topic created", context, name=topic.name)


def topics_deleted(context: RequestContext, _: Any, response: Any) -> Lines:
    """Write a line for each deleted topic."""
    for topic in successes_of(response.responses):
        yield from note_line("topic deleted", context, name=topic.name)


def partitions_added(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write a line for each topic that got more partitions."""
    counts = {topic.name: topic.count for topic in request.topics}
    if not request.validate_only:
        for topic in successes_of(response.results):
            yield from note_line("partitions added", context, name=topic.name, count=counts.get(topic.name))


def configs_changed(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write a line for each resource whose configs were changed."""
    keys = {
        (resource.resource_type, resource.resource_name): [config.name for config in resource.configs]
        for resource in request.resources
    }
    if not request.validate_only:
        for resource in successes_of(response.responses):
            kind, name = resource.resource_type, resource.resource_name
            yield from note_configs(context, kind, name, keys.get((kind, name), ()))


def quotas_changed(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write a line for each entity whose quotas were changed."""
    keys = {entity_of(entry): [op.key for op in entry.ops] for entry in request.entries}
    if not request.validate_only:
        for entry in successes_of(response.entries):
            yield from note_quotas(context, entity_of(entry), keys.get(entity_of(entry), ()))


def entity_of(entry: Any) -> tuple[tuple[str, str | None], ...]:
    """Return the types and names of an entity, sorted by type."""
    return tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=lambda part: part[0]))


def credentials_changed(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write a line for each password that was set or removed."""
    users = {result.user for result in successes_of(response.results)}
    return note_credentials(context, (change for change in changes_of(request) if change.name in users))


def acls_created(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write a line for each ACL that was accepted: the response does not say which ones existed already."""
    rules = (
        AccessRule(
            acl.resource_type,
            acl.resource_name,
            acl.resource_pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for acl, result in zip(request.creations, response.results, strict=False)
        if not result.error_code
    )
    return note_acls("acl created", context, rules)


def acls_deleted(context: RequestContext, _: Any, response: Any) -> Lines:
    """Write a line for each deleted ACL; only one if two filters matched it."""
    rules = {
        AccessRule(
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        ): None
        for found in successes_of(response.filter_results)
        for acl in successes_of(found.matching_acls)
    }
    return note_acls("acl deleted", context, rules)


def token_created(context: RequestContext, _: Any, response: Any) -> Lines:
    """Write the line of a new token."""
    owner = f"{response.principal_type}:{response.principal_name}"
    for made in successes_of([response]):
        yield from note_line("token created", context, token=made.token_id, owner=owner)


def token_renewed(context: RequestContext, _: Any, response: Any) -> Lines:
    """Write the line of a renewed token."""
    for changed in successes_of([response]):
        yield from note_line("token renewed", context, until_ms=changed.expiry_timestamp_ms)


def token_expired(context: RequestContext, _: Any, response: Any) -> Lines:
    """Write the line of a token whose expiry time was set."""
    for changed in successes_of([response]):
        yield from note_line("token expired", context, until_ms=changed.expiry_timestamp_ms)


def leaders_elected(context: RequestContext, _: Any, response: Any) -> Lines:
    """Write a line for each topic with a new leader."""
    for topic in response.replica_election_results:
        indexes = [partition.partition_id for partition in successes_of(topic.partition_result)]
        if indexes:
            yield from note_line("leaders elected", context, topic=topic.topic, partitions=indexes)


def partitions_moved(context: RequestContext, _: Any, response: Any) -> Lines:
    """Write a line for each topic with partitions whose reassignment was begun or cancelled."""
    for topic in response.responses:
        indexes = [partition.partition_index for partition in successes_of(topic.partitions)]
        if indexes and not response.error_code:
            yield from note_line("partitions reassigned", context, topic=topic.name, partitions=indexes)


def features_changed(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write the line of new feature levels; a request changes all of its levels or none."""
    levels = {update.feature: update.max_version_level for update in request.feature_updates}
    failed = response.error_code or any(result.error_code for result in response.results)
    if levels and not failed and not request.validate_only:
        yield from note_line("features changed", context, levels=levels)


def broker_unregistered(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write the line of an unregistered broker."""
    for _ in successes_of([response]):
        yield from note_line("broker unregistered", context, broker=request.broker_id)


def voter_added(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write the line of a controller that became a voter."""
    for _ in successes_of([response]):
        yield from note_line("voter added", context, controller=request.voter_id)


def voter_removed(context: RequestContext, request: Any, response: Any) -> Lines:
    """Write the line of a controller that is not a voter any more."""
    for _ in successes_of([response]):
        yield from note_line("voter removed", context, controller=request.voter_id)


def successes_of(results: list[Any]) -> Iterator[Any]:
    """Return the results without an error."""
    return (result for result in results if not result.error_code)


LINES: dict[int, LinesOf] = {
    ApiKey.CREATE_TOPICS: topics_created,
    ApiKey.DELETE_TOPICS: topics_deleted,
    ApiKey.CREATE_PARTITIONS: partitions_added,
    ApiKey.ALTER_CONFIGS: configs_changed,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs_changed,
    ApiKey.ALTER_CLIENT_QUOTAS: quotas_changed,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: credentials_changed,
    ApiKey.CREATE_ACLS: acls_created,
    ApiKey.DELETE_ACLS: acls_deleted,
    ApiKey.CREATE_DELEGATION_TOKEN: token_created,
    ApiKey.RENEW_DELEGATION_TOKEN: token_renewed,
    ApiKey.EXPIRE_DELEGATION_TOKEN: token_expired,
    ApiKey.ELECT_LEADERS: leaders_elected,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: partitions_moved,
    ApiKey.UPDATE_FEATURES: features_changed,
    ApiKey.UNREGISTER_BROKER: broker_unregistered,
    ApiKey.ADD_RAFT_VOTER: voter_added,
    ApiKey.REMOVE_RAFT_VOTER: voter_removed,
}
"""Forwarded API -> function that writes its audit lines, for each API that changes something."""
