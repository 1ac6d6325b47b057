"""DeleteAcls: remove the access rules that match filters, and report them (KIP-290). SECURITY_DISABLED without an
authorizer, as Kafka answers.

Versions: 0 knows literal names alone; 2 flexible; 3 user resources (KIP-373). The rules of all filters are removed in
one batch, and do not apply from then on; the answer is sent when their removal is durable. A request that matches more
rules than may be removed at once removes nothing.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.acls import AclFilter, check_filter, find_acls
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.steps import Steps, strip_traceback, wait_for
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_acls
from tidelog.protocol.acl import PatternType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, SecurityDisabledError
from tidelog.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest

API_KEY = ApiKey.DELETE_ACLS
MIN_VERSION = 0
MAX_VERSION = 3
Request = DeleteAclsRequest


def handle(broker: Broker, context: RequestContext, request: DeleteAclsRequest) -> Steps[DeleteAclsResponse]:
    """Remove the rules that match the filters. Raises SecurityDisabledError, PolicyViolationError,
    KafkaStorageError; CloseConnectionError for a filter with UNKNOWN in it."""
    if broker.authorizer is None:
        raise SecurityDisabledError("No Authorizer is configured.")
    filters: list[AclFilter] = []
    outcomes: list[int | KafkaError] = []  # of each filter of the request: its index in ``filters``, or its error
    for given in request.filters:
        wanted = filter_of(given, context.api_version)
        try:
            check_filter(wanted)
            outcomes.append(len(filters))
            filters.append(wanted)
        except KafkaError as error:
            outcomes.append(strip_traceback(error))
        yield None
    found = yield from find_acls(broker.controller.image.acls, filters)
    present = broker.controller.image.acls
    records = found.removal_records(present)
    removed = [present[one] for one in found.ids if one in present]
    broker.controller.commit(records)
    synced = broker.controller.when_synced()
    with Notes(broker.late_lines) as notes:
        notes.add(synced, note_acls("acl deleted", context, removed))
        yield from wait_for(synced)
        yield from notes.write()
    results = []
    for outcome in outcomes:
        results.append(result_of(outcome if isinstance(outcome, KafkaError) else found.by_filter[outcome]))
        yield None
    return DeleteAclsResponse(filter_results=results)


def filter_of(given: DeleteAclsFilter | DescribeAclsRequest, version: int) -> AclFilter:
    """Convert a filter of a request. Version 0 has literal names alone. Raises CloseConnectionError for UNKNOWN."""
    pattern_type = PatternType.LITERAL if version == 0 else given.pattern_type_filter
    if not all((given.resource_type_filter, pattern_type, given.operation, given.permission_type)):
        raise CloseConnectionError("a filter of ACLs with UNKNOWN in it")
    return AclFilter(
        given.resource_type_filter,
        given.resource_name_filter,
        pattern_type,
        given.principal_filter,
        given.host_filter,
        given.operation,
        given.permission_type,
    )


def result_of(outcome: list[AccessRule] | KafkaError) -> DeleteAclsFilterResult:
    """Build one filter's answer."""
    if isinstance(outcome, KafkaError):
        return DeleteAclsFilterResult(error_code=outcome.code, error_message=outcome.message)
    removed = [
        DeleteAclsMatchingAcl(
            resource_type=rule.resource_type,
            resource_name=rule.resource_name,
            pattern_type=rule.pattern_type,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        for rule in outcome
    ]
    return DeleteAclsFilterResult(matching_acls=removed)


def error_response(request: DeleteAclsRequest, error: KafkaError) -> DeleteAclsResponse:
    """Answer every filter with the error."""
    return DeleteAclsResponse(filter_results=[result_of(error)] * len(request.filters))
