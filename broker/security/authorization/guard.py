"""Authorization of one request: checks before its handler, and removal of refused elements from request and response.

Most handlers know nothing of authorization. If an authorizer is configured, the dispatcher calls a
:class:`GuardedHandler` in their place. It refuses the whole request, or passes the handler a copy without the refused
elements. It adds the refused elements to the response, mostly as the handler's own ``error_response`` writes them. The
checks are in the rows of ``tidelog.broker.security.authorization.table``; a broker without an authorizer makes none of
them. Some handlers call the authorizer themselves: fetches, for example, because their partitions are in sessions.

Requests with more than FEW elements are checked in steps. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.protocol.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from tidelog.protocol.schema.copies import with_fields
from tidelog.protocol.schema.refusal import refuse_in_steps

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.security.authorization.authorizer import Authorizer

FEW = 32
"""Largest number of elements that are checked at once, without steps."""
ASKED_PER_STEP = 16
"""Checks in one step; each takes 4 to 25 us if its decision is not cached."""

ERRORS: dict[ResourceType, type[KafkaError]] = {
    ResourceType.TOPIC: TopicAuthorizationFailedError,
    ResourceType.GROUP: GroupAuthorizationFailedError,
    ResourceType.CLUSTER: ClusterAuthorizationFailedError,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailedError,
}


class Need(NamedTuple):
    """A permission that a client needs: an operation on a resource."""

    operation: AclOperation
    resource_type: ResourceType
    name: str


def cluster(operation: AclOperation) -> Need:
    """Return the permission for an operation on the cluster."""
    return Need(operation, ResourceType.CLUSTER, CLUSTER_NAME)


class Call:
    """One request on its way to its handler, with methods for its checks."""

    __slots__ = ("_authorizer", "_module", "broker", "context", "request")

    def __init__(
        self, authorizer: Authorizer, module: Any, broker: Broker, context: RequestContext, request: Any
    ) -> None:
        self._authorizer = authorizer
        self._module = module
        self.broker = broker
        self.context = context
        self.request = request

    def has_permission(self, need: Need, *, is_filter: bool = False) -> bool:
        """Return whether the client has a permission; ``is_filter`` says that a denial is not an error."""
        return self._authorizer.authorize(
            self.context, need.operation, need.resource_type, need.name, is_filter=is_filter
        )

    def may_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether the client may do an operation with at least one resource of a type."""
        return self._authorizer.authorize_any(self.context, operation, resource_type)

    def may_topic(self, operation: AclOperation, name: str, *, is_filter: bool = False) -> bool:
        """Return whether the client may do an operation with a topic."""
        return self._authorizer.authorize(self.context, operation, ResourceType.TOPIC, name, is_filter=is_filter)

    def require(self, need: Need) -> None:
        """Raise the authorization error of the resource's type unless the client has a permission."""
        if not self.has_permission(need):
            raise ERRORS[need.resource_type]

    def operations(self, supported: Iterable[int], resource_type: ResourceType, name: str) -> int:
        """Return the bit field of the operations that the client may do with a resource."""
        return self._authorizer.operations(self.context, supported, resource_type, name)

    def topic_name(self, name: str | None, topic_id: bytes) -> str | None:
        """Return a topic's name, which is given or looked up by its id; None for an id that no topic has."""
        return name or self.broker.metadata.topic_names.get(topic_id)

    def proceed(self) -> Any:
        """Call the handler with the request as it is."""
        return self._module.handle(self.broker, self.context, self.request)

    def settle(self, request: Any) -> Steps[Any]:
        """Call the handler and wait for its response; a KafkaError becomes its error response."""
        try:
            handled = self._module.handle(self.broker, self.context, request)
            if handled.__class__ is GeneratorType:
                handled = yield from handled
            if isinstance(handled, Deferred):
                handled = yield from wait_for(handled)
        except KafkaError as error:
            handled = yield from self.refuse(request, error)
        return handled

    def refuse(self, request: Any, error: KafkaError) -> Steps[Any]:
        """Build the handler's error response in steps."""
        return refuse_in_steps(self._module.error_response, request, error)


Handle = Callable[["Broker", "RequestContext", Any], Any]
Shortcut = Callable[["Authorizer", Any, Handle], Handle]
"""Function that takes the authorizer, a handler's module and its checked handler. It returns a handler with a faster
check of the most frequent requests.
"""
Before = Callable[[Call], None]
"""Check of the whole request. Raises KafkaError."""
Around = Callable[[Call], Any]
"""Function that handles a request without its refused elements; it returns what a handler returns."""
Edit = Callable[[Call, Any], Steps[None]]
"""Function that changes a response in steps."""


class GuardedHandler:
    """A handler module with checks before its handler. It has the attributes that a route reads of a handler module."""

    __slots__ = ("Request", "_around", "_authorizer", "_before", "_module", "error_response", "handle")

    def __init__(
        self,
        authorizer: Authorizer,
        module: Any,
        before: Before | None = None,
        around: Around | None = None,
        shortcut: Shortcut | None = None,
    ) -> None:
        self.Request = module.Request
        self.error_response = module.error_response
        self._authorizer = authorizer
        self._module = module
        self._before = before
        self._around = around
        self.handle: Handle = self._check
        """Checks a request, and calls the handler with the allowed part of it. Raises KafkaError,
        CloseConnectionError.
        """
        if before is None and around is None:
            self.handle = module.handle
        elif shortcut is not None:
            self.handle = shortcut(authorizer, module, self._check)

    def _check(self, broker: Broker, context: RequestContext, request: Any) -> Any:
        call = Call(self._authorizer, self._module, broker, context, request)
        if self._before is not None:
            self._before(call)
        return call.proceed() if self._around is None else self._around(call)


@dataclass(frozen=True, slots=True)
class Split:
    """Check of each element in one array of a request; refused elements are removed, and answered with an error."""

    refusal: Callable[[Call, Any], KafkaError | None]
    """Returns the error of a refused element, None for an allowed one."""
    array: str = "topics"
    """Name of the request's array."""
    answer: str = "topics"
    """Name of the response's array, to which the refused elements of the handler's error response are added."""
    refused: Callable[[Any, KafkaError], Any] | None = None
    """Builds a refused element of the response, for an API whose error response has none."""
    edit: Edit | None = None
    """Changes the response of the handler, before refused elements are added."""

    def __call__(self, call: Call) -> Any:
        """Call the handler with the elements that are allowed, and add the refused ones to its response.

        If every element is refused, the handler is called only if the check has ``refused``.
        """
        elements = getattr(call.request, self.array)
        if len(elements) <= FEW:
            errors = [self.refusal(call, element) for element in elements]
            if self.edit is None and not any(errors):
                return call.proceed()
            return self._finish(call, errors)
        return self._check_in_steps(call, elements)

    def _check_in_steps(self, call: Call, elements: list[Any]) -> Steps[Any]:
        errors = []
        for number, element in enumerate(elements):
            errors.append(self.refusal(call, element))
            if not number % ASKED_PER_STEP:
                yield None
        return (yield from self._finish(call, errors))

    def _finish(self, call: Call, errors: list[KafkaError | None]) -> Steps[Any]:
        elements = getattr(call.request, self.array)
        left = [element for element, error in zip(elements, errors, strict=True) if error is None]
        refused = [(element, error) for element, error in zip(elements, errors, strict=True) if error is not None]
        if not refused:
            response = yield from call.settle(call.request)
        elif left or self.refused is not None:
            response = yield from call.settle(with_fields(call.request, **{self.array: left}))
        else:
            response = None
        if self.edit is not None and response is not None:
            yield from self.edit(call, response)
        for kind in dict.fromkeys(type(error) for _, error in refused):
            group = [(element, error) for element, error in refused if type(error) is kind]
            response = yield from self._add_refused(call, response, [element for element, _ in group], group[0][1])
        return response

    def _add_refused(self, call: Call, response: Any, elements: list[Any], error: KafkaError) -> Steps[Any]:
        if self.refused is not None:
            if response.error_code:  # the whole response is an error
                return response
            getattr(response, self.answer).extend(self.refused(element, error) for element in elements)
            return response
        more = yield from call.refuse(with_fields(call.request, **{self.array: elements}), error)
        if response is None:
            return more
        getattr(response, self.answer).extend(getattr(more, self.answer))
        return response


def edit_response(edit: Edit) -> Around:
    """Return a function that calls the handler with the whole request, and changes its response by ``edit``."""

    def handle(call: Call) -> Steps[Any]:
        response = yield from call.settle(call.request)
        yield from edit(call, response)
        return response

    return handle


def keep_allowed(call: Call, elements: list[Any], need: Callable[[Any], Need]) -> Steps[list[Any]]:
    """Return the elements that the client may see; the others are left out without an error."""
    kept = []
    for number, element in enumerate(elements):
        if call.has_permission(need(element), is_filter=True):
            kept.append(element)
        if not number % ASKED_PER_STEP:
            yield None
    return kept
