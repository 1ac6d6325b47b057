"""Dispatcher of a member: it forwards some requests, and lets coordinators verify transactional Produce requests.

    an API of FORWARDED     goes to the active controller unchanged, and its answer goes to the client unchanged
    transactional Produce   is handled here once the coordinator, mostly on another broker, was asked whether each
                            batch's partition is in the transaction (KIP-890)
    any other               is handled here, as by a broker without a cluster

Levels of loggers belong to one process, so a request that changes nothing else is handled here, too.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.cluster.forwarding import FORWARDED
from tidelog.broker.config.resource_type import ResourceType as ConfigType
from tidelog.broker.coordinator.produce_check import FIRST_VERSION_THAT_ADDS
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Job, Steps, free_in_steps
from tidelog.broker.member.forwarding.audit import note_forwarded
from tidelog.broker.member.forwarding.forwarder import Forwarder
from tidelog.broker.member.peers import MemberPeers
from tidelog.broker.requests.bounds import max_bytes, max_elements
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher, find_entry, own_frame
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import (
    ONE_TURN_ELEMENTS,
    Answer,
    FrameSteps,
    InSteps,
    Route,
    elements_of,
    wait_for,
    wait_for_frame,
)
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION, ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError
from tidelog.protocol.header import decode_request_header
from tidelog.protocol.messages.envelope import DefaultPrincipalData
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.protocol.record.record_batch import MAGIC_OFFSET, MAGIC_V2, RECORD_BATCH_OVERHEAD, RecordBatch

FIRST_TRANSACTIONAL_VERSION = 3
"""First version of Produce with a transactional id."""
FIRST_VERSION_BY_ID = 13
"""First version of Produce that names topics by id."""
_PRODUCE = b"\0\0"
"""API key of Produce, as a frame begins."""
_LENGTH = struct.Struct(">i")
_ROUTE = struct.Struct(">I")
"""API key and version as one number, with which ``find_entry`` finds the handler."""
_CONFIG_CHANGES = (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
"""APIs that may change levels of loggers."""


class MemberDispatcher(Dispatcher):
    """Dispatcher that forwards requests, and lets transactional ones be verified. Loop thread only."""

    __slots__ = ("_forwarder", "_peers")

    def __init__(self, broker: Broker, forwarder: Forwarder, peers: MemberPeers) -> None:
        super().__init__(broker)
        self._forwarder = forwarder
        self._peers = peers

    def dispatch(self, context: RequestContext, frame: memoryview) -> Answer:
        """Answer one request, as ``Dispatcher.dispatch``."""
        if len(frame) < _ROUTE.size or frame[0] or frame[1] not in FORWARDED:
            if frame[:2] == _PRODUCE and has_transactional_id(frame):
                return self._produce(context, frame)
            return super().dispatch(context, frame)
        api_key = context.api_key = check_served(frame)
        allowed = max_bytes(api_key, self._broker.config)
        if len(frame) > allowed:
            raise InvalidRequestError(f"a request of {len(frame)} bytes; this API has at most {allowed}")
        if self._forwarder.is_full:
            raise CloseConnectionError("too many requests wait for the active controller")
        answer = self.runner.run(self._forward(context, memoryview(bytearray(frame)), api_key))
        return InSteps(api_key, answer) if isinstance(answer, Job) else answer

    def _forward(self, context: RequestContext, frame: memoryview, api_key: int) -> FrameSteps:
        """Return the controller's answer to a request, whose version is served. If there is none, the KafkaError that
        says why is answered as the API's own handler would answer it.

        Raises InvalidRequestError, CloseConnectionError.
        """
        if api_key in _CONFIG_CHANGES and (yield from changes_loggers(frame)):
            return (yield from wait_for_frame(Dispatcher.dispatch(self, context, frame)))
        principal = DefaultPrincipalData(type=context.principal.type, name=context.principal.name)
        principal.token_authenticated = context.token_authenticated
        note = partial(self._note, context, frame)
        try:
            response = yield from wait_for(self._forwarder.forward(frame, principal, context.client_host, note))
        except KafkaError as error:
            return (yield from self._refuse(frame, error))
        return _LENGTH.pack(len(response)) + response

    def _note(self, context: RequestContext, frame: memoryview, response: bytes) -> None:
        """Begin to write the audit lines of a request that the controller has answered; later steps write them."""
        self._broker.late_lines.begin(note_forwarded(context, frame, memoryview(response)))

    def _produce(self, context: RequestContext, frame: memoryview) -> Answer:
        """Answer a transactional produce request once its coordinator was asked about its batches.

        Raises InvalidRequestError, CloseConnectionError.
        """
        context.api_key = check_served(frame)
        own = own_frame(frame)
        try:
            waits = [one for one in self._verifications(context, own, decode(own)) if one is not None]
        except InvalidRequestError:  # malformed, or too large for one turn of the loop: steps show which
            steps = self._produce_many(context, own)
        else:
            if not waits:
                return super().dispatch(context, frame)
            steps = self._produce_after(waits, context, own)
        answer = self.runner.run(steps)
        return InSteps(ApiKey.PRODUCE, answer) if isinstance(answer, Job) else answer

    def _produce_many(self, context: RequestContext, own: memoryview) -> FrameSteps:
        """Do what ``_produce`` does for a request of many partitions, in steps."""
        request = yield from decode_in_steps(own)
        waits = []
        for number, wait in enumerate(self._verifications(context, own, request)):
            if wait is not None:
                waits.append(wait)
            if not number % ITEMS_PER_STEP:
                yield None
        held = list(elements_of(request))
        del request
        yield from free_in_steps(held)
        return (yield from self._produce_after(waits, context, own))

    def _produce_after(self, waits: list[Deferred[None]], context: RequestContext, own: memoryview) -> FrameSteps:
        """Answer a request once ``waits`` have settled."""
        yield from waits
        return (yield from wait_for_frame(Dispatcher.dispatch(self, context, own)))

    def _verifications(
        self, context: RequestContext, frame: memoryview, request: ProduceRequest
    ) -> Iterator[Deferred[None] | None]:
        """Ask the coordinator about each batch of a request. Yields what to wait for, or None if there is nothing, as
        for a batch that is not transactional, or was asked about before.

        Coordinators trust this broker, so they are not asked about a topic that the client may not write.
        """
        version = decode_request_header(frame)[0].api_version
        transactional_id = request.transactional_id or ""
        if not self._may_write(context, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return
        for topic in request.topic_data:
            image = self._broker.metadata.topic_by_id(topic.topic_id) if version >= FIRST_VERSION_BY_ID else None
            name = topic.name if image is None else image.name
            if not self._may_write(context, ResourceType.TOPIC, name):
                yield None
                continue
            for partition in topic.partition_data:
                producer = producer_of(partition.records)
                if producer is None:
                    yield None
                    continue
                named, is_adding = (name, partition.index), version >= FIRST_VERSION_THAT_ADDS
                yield self._peers.ask_coordinator(transactional_id, named, producer, is_adding=is_adding)

    def _may_write(self, context: RequestContext, kind: ResourceType, name: str) -> bool:
        """Return whether a client may WRITE a resource. A refusal has no audit line here: the handler checks again."""
        authorizer = self._broker.authorizer
        return authorizer is None or authorizer.authorize(context, AclOperation.WRITE, kind, name, is_filter=True)

    def _refuse(self, frame: memoryview, error: KafkaError) -> FrameSteps:
        """Build the API's response for an error, as its handler does. Raises InvalidRequestError."""
        header, _ = decode_request_header(frame)
        module = importlib.import_module(REGISTRY[header.api_key].module)
        route = Route(header.api_key, header.api_version, module, self.runner)
        steps = route.refuse_frame_in_steps(header.correlation_id, (yield from decode_in_steps(frame)), error)
        return (yield from steps)


def check_served(frame: memoryview) -> int:
    """Return the API key of a request. Raises InvalidRequestError for a version that is not served."""
    (word,) = _ROUTE.unpack_from(frame)
    find_entry(word)
    return int(word >> 16)


def has_transactional_id(frame: memoryview) -> bool:
    """Return whether a produce request names a transactional id, in whatever version. Raises InvalidRequestError."""
    header, position = decode_request_header(frame)
    if header.api_version < FIRST_TRANSACTIONAL_VERSION or position + 1 >= len(frame):
        return False
    if header.api_version >= FIRST_FLEXIBLE_VERSION[ApiKey.PRODUCE]:
        return frame[position] != 0
    return frame[position] < 0x80  # the length is not -1


def producer_of(records: object) -> tuple[int, int] | None:
    """Return producer id and epoch of a transactional batch; None for another batch, or malformed records."""
    if not isinstance(records, memoryview) or len(records) < RECORD_BATCH_OVERHEAD or records[MAGIC_OFFSET] != MAGIC_V2:
        return None
    batch = RecordBatch(records)
    return (batch.producer_id, batch.producer_epoch) if batch.is_transactional else None


def decode(frame: memoryview) -> Any:
    """Decode a request in one turn of the loop; its version is served. Raises InvalidRequestError, also if it has more
    elements than one turn may decode.
    """
    header, position = decode_request_header(frame)
    module = importlib.import_module(REGISTRY[header.api_key].module)
    return module.Request.decode_from(frame, position, header.api_version, ONE_TURN_ELEMENTS)[0]


def decode_in_steps(frame: memoryview) -> Steps[Any]:
    """Decode a request in steps; its version is served. Raises InvalidRequestError."""
    header, position = decode_request_header(frame)
    module = importlib.import_module(REGISTRY[header.api_key].module)
    steps = module.Request.decode_in_steps(frame, position, header.api_version, max_elements(header.api_key))
    return (yield from steps)[0]


def changes_loggers(frame: memoryview) -> Steps[bool]:
    """Return whether a request changes levels of loggers and nothing else. Raises InvalidRequestError."""
    request = yield from decode_in_steps(frame)
    found = is_about_loggers(request)
    held = list(elements_of(request))
    del request
    yield from free_in_steps(held)
    return found


def is_about_loggers(request: Any) -> bool:
    """Return whether all resources of a request are loggers of a broker."""
    kinds = {resource.resource_type for resource in request.resources}
    return kinds == {ConfigType.BROKER_LOGGER}
