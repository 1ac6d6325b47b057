"""DescribeUserScramCredentials: the SCRAM mechanisms of users (KIP-554). Version 0; null or an empty list asks for
all users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.scram_credentials import ScramCredentials, ScramMechanism
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import DuplicateResourceError, KafkaError, ResourceNotFoundError
from tidelog.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

API_KEY = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
MIN_VERSION = 0
MAX_VERSION = 0
Request = DescribeUserScramCredentialsRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> Steps[DescribeUserScramCredentialsResponse]:
    """Describe the users' credentials in the metadata image."""
    found = ScramCredentials(broker.controller).users()
    asked = Counter(user.name for user in request.users) if request.users else Counter(list(found))
    results = yield from apply_each(
        asked.items(), lambda pair: describe_user(pair[0], found.get(pair[0]), is_repeated=pair[1] > 1)
    )
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def describe_user(
    name: str, credentials: Mapping[ScramMechanism, int] | None, *, is_repeated: bool
) -> DescribeUserScramCredentialsResult:
    """Build the answer for one user, whose credentials are None if there are none."""
    if is_repeated:
        return build_error_result(name, DuplicateResourceError(f"Cannot describe SCRAM credentials of {name} twice"))
    if credentials is None:
        text = f"Attempt to describe a user credential that does not exist: {name}"
        return build_error_result(name, ResourceNotFoundError(text))
    infos = [CredentialInfo(mechanism=kind, iterations=count) for kind, count in credentials.items()]
    return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)


def build_error_result(name: str, error: KafkaError) -> DescribeUserScramCredentialsResult:
    """Build the answer for one user that cannot be described."""
    return DescribeUserScramCredentialsResult(user=name, error_code=error.code, error_message=error.message)


def error_response(
    request: DescribeUserScramCredentialsRequest, error: KafkaError
) -> DescribeUserScramCredentialsResponse:
    """Answer with the error, and repeat it for each requested user, without the name, as Kafka does."""
    result = DescribeUserScramCredentialsResult(user="", error_code=error.code, error_message=error.message)
    return DescribeUserScramCredentialsResponse(
        error_code=error.code, error_message=error.message, results=[result] * len(request.users or ())
    )
