"""FindCoordinator: the node that coordinates a group, a transactional id or a share partition.

v0 knows groups only; v1 adds key types and error messages; v3 is flexible; v4 takes several keys (KIP-699); v5 adds the
error TRANSACTION_ABORTABLE (KIP-890); v6 adds share partitions, with the key "group:topic-id:partition" (KIP-932).

A node's address is the one that Metadata gives the same client. A lone node coordinates all keys; its internal topics
are created with their first record. In a cluster each key belongs to a partition of an internal topic, whose leader
coordinates the key. A missing internal topic is created, and the client tries again.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError
from tidelog.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.types import uuid_from_str

API_KEY = ApiKey.FIND_COORDINATOR
MIN_VERSION, MAX_VERSION = 0, 6
Request = FindCoordinatorRequest

GROUP, TRANSACTION, SHARE = 0, 1, 2
"""Types of a coordinator's key."""
_FIRST_BATCHED_VERSION = 4
_FIRST_SHARE_VERSION = 6
_NO_NODE = -1


def handle(broker: Broker, context: RequestContext, request: FindCoordinatorRequest) -> Steps[FindCoordinatorResponse]:
    """Answer each key; from v4 on each has its own error. Raises InvalidRequestError for a key type that the version
    does not have, and CoordinatorNotAvailableError for the one key of v0-3."""
    last_type = SHARE if context.api_version >= _FIRST_SHARE_VERSION else TRANSACTION
    if not GROUP <= request.key_type <= last_type:
        raise InvalidRequestError(f"unknown coordinator key type {request.key_type}")
    if context.api_version < _FIRST_BATCHED_VERSION:
        _check_key(request.key_type, request.key)
        node = broker.nodes.coordinator(context, request.key_type, request.key)
        return FindCoordinatorResponse(node_id=node.node_id, host=node.host, port=node.port)
    coordinators = []
    for key in request.coordinator_keys:
        try:
            _check_key(request.key_type, key)
            node = broker.nodes.coordinator(context, request.key_type, key)
        except KafkaError as error:
            coordinators.append(_build_error_coordinator(key, error))
        else:
            coordinators.append(Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port))
        yield None
    return FindCoordinatorResponse(coordinators=coordinators)


def error_response(request: FindCoordinatorRequest, error: KafkaError) -> Steps[FindCoordinatorResponse]:
    """Build the answer of an error: in the fields of v0-3, and for each key of v4 and later."""
    return FindCoordinatorResponse(
        error_code=error.code,
        error_message=error.message,
        node_id=_NO_NODE,
        port=-1,
        coordinators=(
            yield from apply_each(request.coordinator_keys, lambda key: _build_error_coordinator(key, error))
        ),
    )


def _check_key(key_type: int, key: str) -> None:
    if key_type != SHARE:
        return
    group_id, _, rest = key.partition(":")
    topic_id, _, partition = rest.partition(":")
    if not (group_id and partition.isdecimal()):
        raise InvalidRequestError(
            f"expected the key group:topic-id:partition of a share partition, found {key[:100]!r}"
        )
    try:
        uuid_from_str(topic_id)
    except ValueError:
        raise InvalidRequestError(f"{topic_id!r} is not a topic id") from None


def _build_error_coordinator(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(key=key, node_id=_NO_NODE, port=-1, error_code=error.code, error_message=error.message)
