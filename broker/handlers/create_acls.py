"""CreateAcls: without an authorizer none can be made: SECURITY_DISABLED, as Kafka answers. Versions 0 to 3."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, SecurityDisabledError
from tidelog.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

API_KEY = ApiKey.CREATE_ACLS
MIN_VERSION = 0
MAX_VERSION = 3
Request = CreateAclsRequest


def handle(broker: Broker, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Raises SecurityDisabledError."""
    raise SecurityDisabledError("No Authorizer is configured.")


def error_response(request: CreateAclsRequest, error: KafkaError) -> CreateAclsResponse:
    """Every creation with the error."""
    result = AclCreationResult(error_code=error.code, error_message=error.message)
    return CreateAclsResponse(results=[result] * len(request.creations))
