"""CreateAcls: add access rules (KIP-290). SECURITY_DISABLED without an authorizer, as Kafka answers.

Versions: 0 knows literal names alone; 2 flexible; 3 user resources (KIP-373). Valid rules are created even if other
rules of the request are invalid. A created rule applies at once; the answer is sent when all are durable.
"""

from __future__ import annotations

import logging

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.acls import check_acl, new_rules, plan_creation
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.steps import Steps, strip_traceback, wait_for
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.metadata.virtual_names import base_name
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_acls
from tidelog.protocol.acl import ResourceType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, SecurityDisabledError
from tidelog.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from tidelog.protocol.types import SystemRandom, random_uuid

logger = logging.getLogger(__name__)

API_KEY = ApiKey.CREATE_ACLS
MIN_VERSION = 0
MAX_VERSION = 3
Request = CreateAclsRequest


def handle(broker: Broker, context: RequestContext, request: CreateAclsRequest) -> Steps[CreateAclsResponse]:
    """Create the rules that are valid, in one batch.

    Raises SecurityDisabledError, PolicyViolationError, KafkaStorageError; CloseConnectionError for a rule with UNKNOWN
    in it.
    """
    authorizer = broker.authorizer
    if authorizer is None:
        raise SecurityDisabledError("No Authorizer is configured.")
    rules: list[AccessRule] = []
    results: list[AclCreationResult] = []
    for creation in request.creations:
        try:
            rules.append(rule_of(creation))
            results.append(AclCreationResult())
        except KafkaError as error:
            results.append(result_of(strip_traceback(error)))
        yield None
    generator = SystemRandom()
    created = new_rules(rules, authorizer.rules)
    records = plan_creation(created, authorizer.rules, lambda: random_uuid(generator))
    broker.controller.commit(records)
    synced = broker.controller.when_synced()
    with Notes(broker.late_lines) as notes:
        notes.add(synced, note_acls("acl created", context, created))
        yield from wait_for(synced)
        yield from notes.write()
    return CreateAclsResponse(results=results)


def rule_of(creation: AclCreation) -> AccessRule:
    """Return the rule that an entry of the request creates. Raises InvalidRequestError, CloseConnectionError."""
    numbers = (creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type)
    if not all(numbers):
        raise CloseConnectionError("CreateAcls with UNKNOWN in an ACL")
    rule = AccessRule(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )
    check_acl(rule)
    if rule.resource_type == ResourceType.TOPIC and base_name(rule.resource_name) != rule.resource_name:
        logger.warning("an ACL of the virtual topic %r has no effect: those of its topic apply", rule.resource_name)
    return rule


def result_of(error: KafkaError) -> AclCreationResult:
    """Build the result of one rule that was not created."""
    return AclCreationResult(error_code=error.code, error_message=error.message)


def error_response(request: CreateAclsRequest, error: KafkaError) -> CreateAclsResponse:
    """Answer every creation with the error."""
    return CreateAclsResponse(results=[result_of(error)] * len(request.creations))
