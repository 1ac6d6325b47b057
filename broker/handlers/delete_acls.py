"""DeleteAcls: without an authorizer there are none: SECURITY_DISABLED, as Kafka answers. Versions 0 to 3."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, SecurityDisabledError
from tidelog.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

API_KEY = ApiKey.DELETE_ACLS
MIN_VERSION = 0
MAX_VERSION = 3
Request = DeleteAclsRequest


def handle(broker: Broker, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Raises SecurityDisabledError."""
    raise SecurityDisabledError("No Authorizer is configured.")


def error_response(request: DeleteAclsRequest, error: KafkaError) -> DeleteAclsResponse:
    """Every filter with the error."""
    result = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))
