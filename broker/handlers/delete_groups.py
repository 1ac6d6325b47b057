"""DeleteGroups v0-2: remove groups without members, with their offsets (KIP-229). v2 flexible."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, wait_for_all
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Lines, Notes, note_change
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

API_KEY = ApiKey.DELETE_GROUPS
MIN_VERSION, MAX_VERSION = 0, 2
Request = DeleteGroupsRequest


def handle(broker: Broker, context: RequestContext, request: DeleteGroupsRequest) -> Steps[DeleteGroupsResponse]:
    """Delete each group; each has its own error."""
    coordinator = coordinators_of(broker).groups
    deleted = []
    with Notes(broker.late_lines) as notes:
        for group_id in request.groups_names:
            deletion = yield from coordinator.delete_group(group_id)
            deleted.append(deletion)
            notes.add(deletion, note_group(context, deletion))
        yield from notes.write()
    return DeleteGroupsResponse(results=(yield from wait_for_all(deleted)))


def note_group(context: RequestContext, deletion: Deferred[DeletableGroupResult]) -> Lines:
    """Write the audit line of a group, if it was deleted."""
    result = deletion.result()
    if not result.error_code:
        note_change("group deleted", context, group=result.group_id)
    yield


def error_response(request: DeleteGroupsRequest, error: KafkaError) -> DeleteGroupsResponse:
    """Build a response with one error for every group."""
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=error.code) for group_id in request.groups_names]
    )
