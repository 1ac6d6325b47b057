"""Conversion between a streams group and the fields of StreamsGroupHeartbeat. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.group.streams.group import Endpoint, StreamsAssignment, StreamsMemberSpec, Tasks
from tidelog.broker.coordinator.group.streams.topology import ConfiguredTopology, PartitionCounts
from tidelog.protocol.messages.streams_group_heartbeat import (
    EndpointResponse,
    EndpointToPartitions,
    StreamsGroupHeartbeatRequest,
    TaskIdsResponse,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.broker.requests.context import RequestContext


def update_spec(
    before: StreamsMemberSpec, context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> StreamsMemberSpec:
    """Return a member's metadata, updated with the fields of the request."""
    tags, endpoint, timeout_ms = request.client_tags, request.user_endpoint, request.rebalance_timeout_ms
    return StreamsMemberSpec(
        rack_id=request.rack_id or before.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=before.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=before.process_id if request.process_id is None else request.process_id,
        user_endpoint=before.user_endpoint if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        client_tags=before.client_tags if tags is None else tuple(sorted((tag.key, tag.value) for tag in tags)),
    )


def tasks_response(tasks: Tasks) -> list[TaskIdsResponse]:
    """Convert tasks in one role to their field in the response."""
    return [
        TaskIdsResponse(subtopology_id=name, partitions=sorted(partitions))
        for name, partitions in sorted(tasks.items())
    ]


def endpoints_response(
    members: Iterable[tuple[StreamsMemberSpec, StreamsAssignment]],
    configured: ConfiguredTopology,
    count_of: PartitionCounts,
) -> list[EndpointToPartitions]:
    """Return the endpoint of each member that has one, with the partitions that its tasks read."""
    return [
        EndpointToPartitions(
            user_endpoint=EndpointResponse(host=spec.user_endpoint.host, port=spec.user_endpoint.port),
            active_partitions=list(_inputs(current.assigned.active, configured, count_of)),
            standby_partitions=list(_inputs(current.assigned.standby, configured, count_of)),
        )
        for spec, current in members
        if spec.user_endpoint is not None
    ]


def _inputs(tasks: Tasks, configured: ConfiguredTopology, count_of: PartitionCounts) -> Iterator[TopicPartition]:
    parts = configured.subtopologies or {}
    for name, partitions in sorted(tasks.items()):
        for topic in parts[name].inputs if name in parts else ():
            count = count_of(topic) or 0
            yield TopicPartition(topic=topic, partitions=sorted(index for index in partitions if index < count))
