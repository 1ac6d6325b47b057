"""Change of one resource's configs, for AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog.broker.broker import Broker
from tidelog.broker.controller.configs import topic_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_configs


class NamedConfig(Protocol):
    """A config in a request, with its key as the name."""

    name: str


class ConfigResource(Protocol):
    """A resource in a request of either API."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[NamedConfig]: ...


def begin_change(
    broker: Broker, context: RequestContext, resource: ConfigResource, work: Callable[[], None], notes: Notes | None
) -> Deferred[None]:
    """Begin the change that ``work`` commits, and note it for the audit log. If partitions are being added to the
    topic, the change begins after that. ``notes`` is None if the request only asks for validation.

    Returns a Deferred that settles when the change is durable. Raises what ``work`` raises.
    """
    change = broker.topics.changes.commit(topic_of(resource.resource_type, resource.resource_name), work)
    if notes is not None:
        names = [config.name for config in resource.configs]
        notes.add(change, note_configs(context, resource.resource_type, resource.resource_name, names))
    return change
