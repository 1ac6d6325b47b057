"""Requests of a page to the broker of its own process, without a socket, under the name of the page's caller.

    page's thread   Cluster -> LocalClient: encodes, waits, decodes, as over the network
    loop thread     Dispatcher: the same handlers, the same checks of the caller's ACLs, long requests in steps

So the functions of ``tidelog.client.admin`` serve the console and the command line alike. A request that takes longer
than the time-out is given up, and the next one has a connection of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from tidelog.broker.broker import Broker
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.route import Answer, Pending
from tidelog.broker.security.principal import Principal
from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import Client, ClientError
from tidelog.client.wire import LENGTH, Wire
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.transferable import TransferableRecords, release_slices
from tidelog.protocol.types import Part

TIMEOUT_S = 10.0
HERE = "this broker"

_Response = TypeVar("_Response", bound=Message)
T = TypeVar("T")
Frame = bytes | list[Part] | None


class Asker:
    """The way of one caller's requests into the loop thread. Made there; pages' threads ask."""

    def __init__(self, broker: Broker, dispatcher: Dispatcher, principal: Principal, host: str) -> None:
        self.broker = broker
        self._dispatcher = dispatcher
        self._principal = principal
        self._host = host

    def make_context(self) -> RequestContext:
        """Describe the caller as a connection of the first listener, whose addresses the answers name. Any thread."""
        listener = self.broker.config.listeners[0]
        context = RequestContext(
            client_host=self._host, local_port=listener.port, listener_name=listener.listener_name
        )  # fmt: skip
        context.principal = self._principal
        return context

    def ask(self, context: RequestContext, frame: bytes) -> bytes:
        """Answer one request; waits for the loop. Raises ClientError."""
        answered: Future[Frame] = Future()
        self.broker.loop.call_soon_threadsafe(self._dispatch, context, frame, answered)
        answer = wait_for(answered, release_slices)
        if answer is None:
            raise ClientError("the broker has refused the request")
        return read_frame(answer)

    def in_loop(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns in the loop thread, where it must be short. Raises what it raises."""
        return wait_for(asyncio.run_coroutine_threadsafe(self._work(work), self.broker.loop))

    async def _work(self, work: Callable[[], T]) -> T:
        found: list[T] = []
        self.broker.timers.turns.run("console", lambda: found.append(work()))
        return found[0]

    def _dispatch(self, context: RequestContext, frame: bytes, answered: Future[Frame]) -> None:
        try:
            answer: Answer = self._dispatcher.dispatch(context, memoryview(frame))
        except (InvalidRequestError, CloseConnectionError):
            answer = None
        if isinstance(answer, Pending):
            answer.on_answer(partial(_complete, answered))
        else:
            _complete(answered, answer)


class LocalClient(Client):
    """A connection without a socket."""

    def __init__(self, asker: Asker) -> None:
        self.bootstrap = HERE
        self.is_broken = False
        self._asker = asker
        self._context = asker.make_context()
        self._wire = Wire(HERE)
        self._served = None
        self._answers: deque[bytes] = deque()

    def close(self) -> None:
        """Do nothing: there is no socket."""

    def post(self, request: Message, version: int) -> None:
        """Ask in this version, and keep the answer. Raises ClientError."""
        frame = b"".join(self._wire.encode(request, version))[LENGTH.size :]
        try:
            self._answers.append(self._asker.ask(self._context, frame))
        except BaseException:
            self.is_broken = True
            raise

    def answer(self, response_type: type[_Response]) -> _Response:
        """Decode the answer to the oldest request that has none yet. Raises ClientError."""
        return self._wire.decode(self._answers.popleft(), response_type)


class LocalCluster(Cluster):
    """The broker of this process alone: groups and transactions that others coordinate are shown there."""

    def __init__(self, asker: Asker) -> None:
        self._own: Address | None = None
        self._node_id = asker.broker.node_id
        super().__init__(HERE, TIMEOUT_S / 2, connect=partial(self._open, asker))

    def brokers(self) -> dict[int, Address]:
        """Return this broker's address, by its node id. Raises ClientError."""
        return {self._node_id: self._own_address()}

    def can_ask_leader(self, topic: str, partition: int) -> bool:
        """Return whether this broker leads the partition."""
        return self.leader(topic, partition) == self._own_address()

    def _own_address(self) -> Address:
        if self._own is None:
            answer = self.ask(MetadataRequest(topics=[]), MetadataResponse)
            found = [(one.host, one.port) for one in answer.brokers if one.node_id == self._node_id]
            if not found:
                raise ClientError("this broker is not registered in its cluster yet")
            (self._own,) = found
        return self._own

    def _open(self, asker: Asker, server: str) -> Client:
        if server != HERE:
            host, port = self._own_address()
            if server not in (f"{host}:{port}", f"[{host}]:{port}"):
                raise ClientError(f"the broker at {server} knows this: ask its console")
        return LocalClient(asker)


def wait_for(done: Future[T], drop: Callable[[T], object] | None = None) -> T:
    """Wait within the time-out; what comes later is dropped. Raises ClientError, and what the work raised."""
    try:
        return done.result(TIMEOUT_S)
    except TimeoutError:
        if not done.cancel() and drop is not None:
            drop(done.result())
        raise ClientError(f"the broker has not answered within {TIMEOUT_S:.0f} s") from None


def _complete(answered: Future[Frame], answer: Frame) -> None:
    if answered.set_running_or_notify_cancel():
        answered.set_result(answer)
    elif isinstance(answer, list):
        release_slices(answer)


def read_frame(answer: bytes | list[Part]) -> bytes:
    """Read the bytes of an answer without its length; files that it promises are read, and let go of."""
    if isinstance(answer, bytes):
        return answer[LENGTH.size :]
    try:
        return b"".join(read_part(part) for part in answer)[LENGTH.size :]
    finally:
        release_slices(answer)


def read_part(part: Part) -> bytes:
    """Read the bytes of a part. Raises ClientError where a file has become shorter."""
    if not isinstance(part, TransferableRecords):
        return bytes(part)
    found = os.pread(part.file.fileno(), part.size, part.position)
    if len(found) != part.size:
        raise ClientError("a log was cut while it was read: try again")
    return found
