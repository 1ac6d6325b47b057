"""Members of classic groups as a load: many connections on one selector, without a client library.

Each member is a small state machine: JoinGroup (twice, since KIP-394), SyncGroup, Heartbeats; REBALANCE_IN_PROGRESS
sends it back to JoinGroup with the id it has. ``wait_until_stable`` drives all of them until they share one generation.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import Counter
from typing import Any

from tidelog.protocol.errors import MemberIdRequiredError, RebalanceInProgressError
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tidelog.protocol.schema.fields import Message

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 5, 3, 3
"""The newest versions that are not flexible: the headers of their requests and answers have no tags."""
HEARTBEAT_S = 0.05
TIMEOUT_S = 120.0
_HEAD = struct.Struct(">ihhih")


def frame_of(request: Message, version: int, correlation_id: int = 0, *, is_flexible: bool = False) -> bytes:
    """Encode a request with its length prefix, without a client id. A flexible version's header ends with an empty tag
    section.
    """
    body = request.encode(version)
    if is_flexible:
        body = b"\x00" + body
    return _HEAD.pack(_HEAD.size - 4 + len(body), request.API_KEY, version, correlation_id, -1) + body


class Wire:
    """One blocking connection that returns answers in order; an answer of a flexible version begins with its header's
    tags.
    """

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Send frames, lengths included."""
        self.socket.sendall(data)

    def answer(self) -> memoryview:
        """Receive the next answer's body."""
        while len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            received = self.socket.recv(1 << 20)
            assert received, "the broker closed the connection"
            self._buffer += received
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        body, self._buffer = memoryview(self._buffer)[8:end], self._buffer[end:]
        return body

    def ask(self, request: Message, version: int, response_type: type[Any]) -> Any:
        """Send one request and return its answer."""
        self.send(frame_of(request, version))
        return response_type.decode(self.answer(), version)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class Member:
    """One member of one classic group."""

    def __init__(self, host: str, port: int, group_id: str) -> None:
        self.wire = Wire(host, port)
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self.size = 0
        self.waits_for: str | None = None
        self.is_synced = False

    def join(self) -> None:
        """Send JoinGroup; the answer comes at the end of the rebalance, or at once to a member without an id."""
        self.is_synced, self.waits_for = False, "join"
        request = JoinGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(20))],
        )
        self.wire.send(frame_of(request, JOIN_VERSION))

    def heartbeat(self) -> None:
        """Send a heartbeat; its answer says whether a rebalance began."""
        self.waits_for = "heartbeat"
        request = HeartbeatRequest(group_id=self.group_id, member_id=self.member_id, generation_id=self.generation_id)
        self.wire.send(frame_of(request, HEARTBEAT_VERSION))

    def take(self) -> None:
        """Take the answer that has come; send the next request of a join or of a rebalance, if there is one."""
        waited_for, self.waits_for = self.waits_for, None
        body = self.wire.answer()
        if waited_for == "join":
            self._handle_join(JoinGroupResponse.decode(body, JOIN_VERSION))
        elif waited_for == "sync":
            self._go_on(SyncGroupResponse.decode(body, SYNC_VERSION).error_code, synced=True)
        else:
            self._go_on(HeartbeatResponse.decode(body, HEARTBEAT_VERSION).error_code, synced=self.is_synced)

    def _handle_join(self, response: JoinGroupResponse) -> None:
        self.member_id = response.member_id
        if response.error_code in (MemberIdRequiredError.code, RebalanceInProgressError.code):
            self.join()
            return
        assert response.error_code == 0, response
        self.generation_id = response.generation_id
        self.size = len(response.members)
        given = [SyncGroupRequestAssignment(member_id=m.member_id, assignment=bytes(20)) for m in response.members]
        self.waits_for = "sync"
        request = SyncGroupRequest(
            group_id=self.group_id, member_id=self.member_id, generation_id=self.generation_id, assignments=given
        )
        self.wire.send(frame_of(request, SYNC_VERSION))

    def _go_on(self, error_code: int, *, synced: bool) -> None:
        if error_code == RebalanceInProgressError.code:
            self.join()
            return
        assert error_code == 0, error_code
        self.is_synced = synced


def wait_until_stable(members: list[Member]) -> float:
    """Join all at once; return the seconds until each member has an assignment in one generation of them all."""
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.wire.socket, selectors.EVENT_READ, member)
            member.join()
        last_heartbeats = began
        while not is_stable(members):
            assert time.perf_counter() - began < TIMEOUT_S, Counter(member.generation_id for member in members)
            for key, _ in selector.select(HEARTBEAT_S):
                key.data.take()
            if time.perf_counter() - last_heartbeats > HEARTBEAT_S:
                last_heartbeats = time.perf_counter()
                for member in members:
                    if member.waits_for is None:
                        member.heartbeat()
    return time.perf_counter() - began


def is_stable(members: list[Member]) -> bool:
    """Return whether all members have an assignment in one generation, whose leader was told of all of them."""
    if not all(member.is_synced for member in members):
        return False
    generations = {member.generation_id for member in members}
    return len(generations) == 1 and max(member.size for member in members) == len(members)
