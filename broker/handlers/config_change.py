"""Change of one resource's configs, for AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Protocol

from tidelog.broker.broker import Broker
from tidelog.broker.controller.configs import topic_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_configs
from tidelog.protocol.errors import InvalidRequestError


class NamedConfig(Protocol):
    """A config in a request, with its key as the name."""

    name: str


class ConfigResource(Protocol):
    """A resource in a request of either API."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[NamedConfig]: ...


def key_of(resource: ConfigResource) -> tuple[int, str]:
    """Return type and name of a resource."""
    return resource.resource_type, resource.resource_name


def check_named_once(resource: ConfigResource, repeated: Container[tuple[int, str]]) -> None:
    """Raise InvalidRequestError for a resource that a request names several times: it is changed by none of them."""
    if key_of(resource) in repeated:
        raise InvalidRequestError("Each resource must appear at most once.")


def check_and_change(
    broker: Broker,
    context: RequestContext,
    resource: ConfigResource,
    check: Callable[[], None] | None,
    work: Callable[[], None],
    notes: Notes | None,
) -> Steps[Deferred[None]]:
    """Begin a change as ``begin_change`` does, after ``check`` has passed in a thread. ``check`` tests the TLS stores
    that the change sets; it is None if there is nothing to test. After a change with a ``check`` the stores are read
    again, even if its keys keep their values. Raises what ``check`` and ``begin_change`` raise.
    """
    if check is not None:
        yield from wait_for(run_in_thread(broker.loop, broker.executor, check))
    change = begin_change(broker, context, resource, work, notes)
    if check is not None and notes is not None:
        broker.loop.call_soon(broker.configs.stores.reload)
    return change


def begin_change(
    broker: Broker, context: RequestContext, resource: ConfigResource, work: Callable[[], None], notes: Notes | None
) -> Deferred[None]:
    """Begin the change that ``work`` commits, and note it for the audit log. If the resource is a topic to which
    partitions are being added, the change begins after that. ``notes`` is None if the request only asks for validation.

    Returns a Deferred that settles when the change is durable. Raises what ``work`` raises; if the change has waited,
    the Deferred fails with that error instead.
    """
    change = broker.topics.changes.commit(topic_of(resource.resource_type, resource.resource_name), work)
    if notes is not None:
        names = [config.name for config in resource.configs]
        notes.add(change, note_configs(context, resource.resource_type, resource.resource_name, names))
    return change
