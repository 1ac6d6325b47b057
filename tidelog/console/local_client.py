"""Requests of a console page to the broker of this process, without a socket, in the name of the page's caller.

    page's thread   Cluster -> LocalClient: encodes, waits, decodes, as over the network
    loop thread     Dispatcher: the same handlers, the same checks of the caller's ACLs, long requests in steps

Records and offsets of partitions that another broker leads are requested from it in this broker's name
(``LeaderClient``). This broker's authorizer must allow the request to the caller first.

With this client, the console uses the same functions of ``tidelog.client.admin`` as the command line. A request that
takes longer than TIMEOUT_S is abandoned. A LocalClient of which a request has failed is not used again.
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
from tidelog.broker.loop.deferred import Deferred, deferred_error
from tidelog.broker.metadata.virtual_names import base_name
from tidelog.broker.peers import LeaderRequest
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.route import Answer, Pending
from tidelog.broker.security.principal import Principal
from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import Client, ClientError
from tidelog.client.wire import LENGTH, Wire, explain_os_error
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidRequestError,
    KafkaError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
)
from tidelog.protocol.messages.fetch import FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.schema.fields import EncodeError, Message
from tidelog.protocol.transferable import TransferableRecords, release_slices
from tidelog.protocol.types import Part

TIMEOUT_S = 10.0
"""The longest wait for one answer of the loop thread, in seconds; a page may have several."""
HERE = "this broker"
"""The address of the broker of this process, where a client has HOST:PORT of another one."""
OTHER_CONSOLE = "only the broker at {} can answer this: open the console of that broker"
"""Error of a request that only another broker can answer, unless it is for partitions; with that broker's address."""
NEWEST = 2**15 - 1
"""Largest number of a version, as an upper limit that excludes none."""

_Response = TypeVar("_Response", bound=Message)
T = TypeVar("T")
Frame = bytes | list[Part] | None


class RequestSender:
    """Sender of one caller's requests to the loop thread. It is created in that thread, and used by those of pages."""

    def __init__(self, broker: Broker, dispatcher: Dispatcher, principal: Principal, host: str) -> None:
        self.broker = broker
        self._dispatcher = dispatcher
        self._principal = principal
        self._host = host

    def make_context(self) -> RequestContext:
        """Build the context of the caller, as of a connection to the first listener: responses have its addresses.
        Any thread."""
        listener = self.broker.config.listeners[0]
        context = RequestContext(
            client_host=self._host, local_port=listener.port, listener_name=listener.listener_name
        )  # fmt: skip
        context.principal = self._principal
        return context

    def ask(self, context: RequestContext, frame: bytes) -> bytes:
        """Send one request to the loop thread and wait for the response. Raises ClientError: the broker refuses the
        request or does not answer, or a log cannot be read."""
        answered: Future[Frame] = Future()
        self.broker.loop.call_soon_threadsafe(self._dispatch, context, frame, answered)
        answer = wait_for(answered, release_slices)
        if answer is None:
            raise ClientError("the broker has refused the request")
        return read_frame(answer)

    def run_in_loop(self, work: Callable[[], T]) -> T:
        """Call ``work`` in the loop thread, where it must be short, and return its result. Raises its errors, and
        ClientError after TIMEOUT_S."""
        return wait_for(asyncio.run_coroutine_threadsafe(self._work(work), self.broker.loop))

    def ask_leader(
        self, node_id: int, request: LeaderRequest, response_type: type[_Response], highest: int
    ) -> _Response:
        """Send a request to another broker, if the caller is allowed to. Raises ClientError if there is no answer;
        TopicAuthorizationFailedError and other KafkaErrors."""
        answered: Future[_Response] = Future()

        def ask() -> None:
            peers = self.broker.peers
            try:
                self._check_topics(request)
                if peers is None:
                    raise LeaderNotAvailableError("there is no other broker")
                peers.ask_leader(node_id, request, response_type, highest).on_done(partial(_settle, answered))
            except KafkaError as error:
                _settle(answered, deferred_error(error))

        self.broker.loop.call_soon_threadsafe(ask)
        try:
            return wait_for(answered)
        except LeaderNotAvailableError as error:  # not retried: the page shows the error
            raise ClientError(str(error)) from None

    def _check_topics(self, request: LeaderRequest) -> None:
        """Raise TopicAuthorizationFailedError unless the caller is authorized for all topics of the request. Loop
        thread."""
        authorizer = self.broker.authorizer
        if authorizer is None:
            return
        context = self.make_context()
        is_fetch = isinstance(request, FetchRequest)
        operation = AclOperation.READ if is_fetch else AclOperation.DESCRIBE
        asked = {one.topic if isinstance(one, FetchTopic) else one.name for one in request.topics}
        # A leader that does not know the topic (yet) may read its name as that of a virtual topic, such as
        # ``orders?key=1`` (broker/metadata/virtual_names.py). So the topic before the mark is checked, too.
        names = asked.union(map(base_name, asked))
        if not all(authorizer.authorize(context, operation, ResourceType.TOPIC, name) for name in names):
            raise TopicAuthorizationFailedError

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
    """A connection to the broker of this process, without a socket."""

    def __init__(self, sender: RequestSender) -> None:
        self.bootstrap = HERE
        self.is_broken = False
        self._sender = sender
        self._context = sender.make_context()
        self._wire = Wire(HERE)
        self._served = None
        self._answers: deque[bytes] = deque()

    def close(self) -> None:
        """Do nothing: there is no socket."""

    def post(self, request: Message, version: int) -> None:
        """Send a request in this version, and keep the response. Raises ClientError."""
        try:
            frame = b"".join(self._wire.encode(request, version))[LENGTH.size :]
        except EncodeError as error:
            raise ClientError(str(error)) from error
        try:
            self._answers.append(self._sender.ask(self._context, frame))
        except BaseException:
            self.is_broken = True
            raise

    def answer(self, response_type: type[_Response]) -> _Response:
        """Decode the response to the oldest request in flight. Raises ClientError; InvalidRequestError if malformed."""
        return self._wire.decode(self._answers.popleft(), response_type)


class LeaderClient(Client):
    """A connection to another broker, only for the partitions that it leads; its own console shows its groups."""

    def __init__(self, sender: RequestSender, server: str, node_id: int) -> None:
        self.bootstrap = server
        self.is_broken = False
        self._sender = sender
        self._node_id = node_id

    def close(self) -> None:
        """Do nothing: the connection is the broker's."""

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Return all versions of all APIs: the broker's own connection chooses the version."""
        return dict.fromkeys(ApiKey, (0, NEWEST))

    def send(self, request: Message, response_type: type[_Response], version: int) -> _Response:
        """Send a Fetch or ListOffsets, in this version or an older one. Raises ClientError, KafkaError."""
        if not isinstance(request, FetchRequest | ListOffsetsRequest):
            raise ClientError(OTHER_CONSOLE.format(self.bootstrap))
        return self._sender.ask_leader(self._node_id, request, response_type, version)


class LocalCluster(Cluster):
    """The broker of this process, and other brokers as leaders of partitions. A group or transactional id is shown only
    by the console of its coordinator."""

    def __init__(self, sender: RequestSender) -> None:
        self._nodes: dict[Address, int] = {}
        self._node_id = sender.broker.node_id
        super().__init__(HERE, TIMEOUT_S / 2, connect=partial(self._open, sender))

    def brokers(self) -> dict[int, Address]:
        """Return this broker's address, by its node id. Raises ClientError, KafkaError."""
        return {self._node_id: self._own_address()}

    def coordinator(self, key: str, key_type: int) -> Client:
        """Return this broker if it coordinates the group or transactional id. Raises ClientError, KafkaError."""
        client = super().coordinator(key, key_type)
        if isinstance(client, LeaderClient):
            raise ClientError(OTHER_CONSOLE.format(client.bootstrap))
        return client

    def _own_address(self) -> Address:
        for address, node_id in self._all_nodes().items():
            if node_id == self._node_id:
                return address
        raise ClientError("this broker is not registered in its cluster yet")

    def _all_nodes(self) -> dict[Address, int]:
        if not self._nodes:
            answer = self.ask(MetadataRequest(topics=[]), MetadataResponse)
            self._nodes = {(one.host, one.port): one.node_id for one in answer.brokers}
        return self._nodes

    def _open(self, sender: RequestSender, server: str) -> Client:
        if server == HERE:
            return LocalClient(sender)
        for (host, port), node_id in self._all_nodes().items():
            if server in (f"{host}:{port}", f"[{host}]:{port}"):
                return LocalClient(sender) if node_id == self._node_id else LeaderClient(sender, server, node_id)
        raise ClientError(f"there is no broker at {server} any more: try again")


def wait_for(done: Future[T], discard: Callable[[T], object] | None = None) -> T:
    """Return the result of work in the loop thread. Raises the errors of the work, and ClientError after TIMEOUT_S.

    ``discard`` is called with a result that arrives as the wait ends, so that it can close its files.
    """
    try:
        return done.result(TIMEOUT_S)
    except TimeoutError:
        if not done.cancel() and discard is not None:
            discard(done.result())
        raise ClientError(f"the broker has not answered within {TIMEOUT_S:.0f} s") from None


def _settle(answered: Future[_Response], deferred: Deferred[_Response]) -> None:
    if not answered.set_running_or_notify_cancel():
        return
    try:
        answered.set_result(deferred.result())
    except KafkaError as error:
        answered.set_exception(error)


def _complete(answered: Future[Frame], answer: Frame) -> None:
    if answered.set_running_or_notify_cancel():
        answered.set_result(answer)
    elif isinstance(answer, list):
        release_slices(answer)


def read_frame(answer: bytes | list[Part]) -> bytes:
    """Return the bytes of a response without the length; parts in files are read, and the files released. Raises
    ClientError if a file cannot be read."""
    if isinstance(answer, bytes):
        return answer[LENGTH.size :]
    try:
        return b"".join(read_part(part) for part in answer)[LENGTH.size :]
    finally:
        release_slices(answer)


def read_part(part: Part) -> bytes:
    """Read the bytes of a part. Raises ClientError if its file was truncated or cannot be read."""
    if not isinstance(part, TransferableRecords):
        return bytes(part)
    try:
        found = os.pread(part.file.fileno(), part.size, part.position)
    except OSError as error:
        raise ClientError(f"a log cannot be read: {explain_os_error(error)}") from error
    if len(found) != part.size:
        raise ClientError("a log was truncated while it was read: try again")
    return found
