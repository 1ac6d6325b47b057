"""FindCoordinator: the node that coordinates a group, a transactional id or a share partition.

v0 groups only; v1 key types and messages; v3 flexible; v4 several keys (KIP-699); v5 TRANSACTION_ABORTABLE
(KIP-890); v6 share partitions, key "group:topic-id:partition" (KIP-932). The address is the one Metadata tells this
client. A lone node coordinates all, and creates nothing here: its internal topics come with their first record.
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
_FIRST_BATCHED_VERSION = 4
_FIRST_SHARE_VERSION = 6
_NO_NODE = -1


def handle(broker: Broker, context: RequestContext, request: FindCoordinatorRequest) -> Steps[FindCoordinatorResponse]:
    """Answer each key. Raises InvalidRequestError for a key type that the version does not have."""
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
    """The error in the place of old and of new versions."""
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
        raise InvalidRequestError("a share coordinator key is group:topic-id:partition")
    try:
        uuid_from_str(topic_id)
    except ValueError:
        raise InvalidRequestError(f"{topic_id!r} is no topic id") from None


def _build_error_coordinator(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(key=key, node_id=_NO_NODE, port=-1, error_code=error.code, error_message=error.message)
