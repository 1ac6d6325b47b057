"""DescribeAcls: without an authorizer there are none: SECURITY_DISABLED, as Kafka answers. Versions 0 to 3."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, SecurityDisabledError
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

API_KEY = ApiKey.DESCRIBE_ACLS
MIN_VERSION = 0
MAX_VERSION = 3
Request = DescribeAclsRequest


def handle(broker: Broker, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Raises SecurityDisabledError."""
    raise SecurityDisabledError("No Authorizer is configured.")


def error_response(request: DescribeAclsRequest, error: KafkaError) -> DescribeAclsResponse:
    """The error for the whole answer."""
    return DescribeAclsResponse(error_code=error.code, error_message=error.message)
