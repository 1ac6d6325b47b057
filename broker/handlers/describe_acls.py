"""DescribeAcls: list the access rules that match a filter (KIP-290). SECURITY_DISABLED without an authorizer, as Kafka
answers.

Versions: 0 knows literal names alone; 2 flexible; 3 user resources (KIP-373).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.acls import find_acls
from tidelog.broker.handlers.delete_acls import filter_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, SecurityDisabledError
from tidelog.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

API_KEY = ApiKey.DESCRIBE_ACLS
MIN_VERSION = 0
MAX_VERSION = 3
Request = DescribeAclsRequest


def handle(broker: Broker, context: RequestContext, request: DescribeAclsRequest) -> Steps[DescribeAclsResponse]:
    """List the rules that match the filter, by resource. Raises SecurityDisabledError, CloseConnectionError."""
    if broker.authorizer is None:
        raise SecurityDisabledError("No Authorizer is configured on the broker")
    found = yield from find_acls(broker.controller.image.acls, [filter_of(request, context.api_version)])
    resources: dict[tuple[int, int, str], DescribeAclsResource] = {}
    for rule in dict.fromkeys(found.by_filter[0]):
        key = (rule.resource_type, rule.pattern_type, rule.resource_name)
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = DescribeAclsResource(
                resource_type=rule.resource_type, resource_name=rule.resource_name, pattern_type=rule.pattern_type
            )
        resource.acls.append(
            AclDescription(
                principal=rule.principal, host=rule.host, operation=rule.operation, permission_type=rule.permission
            )
        )
        yield None
    return DescribeAclsResponse(resources=list(resources.values()))


def error_response(request: DescribeAclsRequest, error: KafkaError) -> DescribeAclsResponse:
    """Build an answer that has only the error."""
    return DescribeAclsResponse(error_code=error.code, error_message=error.message)
