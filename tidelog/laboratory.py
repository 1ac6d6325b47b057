"""Laboratory controls of a broker for tests: ``with Broker(lab=True) as broker: broker.lab.advance(days=8)``.

The controls move the broker's clock, inject faults, and save and restore its state. They use a socket pair between this
process and the broker's, which no network can reach. Each call returns once the broker has executed its command. Not
thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from tidelog.protocol.foreign_text import decode_json

TIMEOUT_S = 60.0
MAX_COMMAND_BYTES = 65_536
"""Largest size of a command. After a longer one the broker closes the socket."""
LABORATORY_DEFAULTS = {
    # The clock is moved by days, and idle connections must stay open.
    "connections.max.idle.ms": "-1",
    # Snapshots copy every partition.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
"""Defaults of a broker with laboratory controls; keys of the caller override them."""


class LaboratoryError(Exception):
    """A control failed; the message says why."""


class Fault:
    """A fault that has been injected."""

    def __init__(self, laboratory: Laboratory, number: int) -> None:
        self._laboratory = laboratory
        self._number = number

    @property
    def met(self) -> int:
        """Number of requests that the fault has affected. Raises LaboratoryError once the faults were removed: by
        ``clear``, ``snapshot`` or ``restore``.
        """
        return int(self._laboratory.ask("met", fault=self._number))


class Snapshot:
    """A saved state of a broker, for ``restore``."""

    def __init__(self, number: int) -> None:
        self.number = number


class Laboratory:
    """Controls of one running broker. All methods raise LaboratoryError."""

    def __init__(self, connection: socket.socket) -> None:
        """``connection`` is this process's end of the socket pair."""
        self._connection = connection
        connection.settimeout(TIMEOUT_S)
        self._lines = connection.makefile("rb")

    # ---- time

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move the broker's clock forward; timeouts, retention and long polls that are due then take effect."""
        try:
            span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        except (OverflowError, ValueError) as error:
            raise LaboratoryError(f"advance: {error}") from error
        self.ask("advance", ms=round(span / timedelta(milliseconds=1)))

    @property
    def time_ms(self) -> int:
        """The broker's time, in milliseconds since 1970."""
        return int(self.ask("time"))

    # ---- faults

    def fail(self, api: str, error: str, *, times: int = 1, after: int = 0, topic: str | None = None) -> Fault:
        """Answer the next ``times`` requests of an API with an error, once ``after`` were handled.

        ``api`` and ``error`` are Kafka's names: ``"Produce"``, ``"NOT_LEADER_OR_FOLLOWER"``. With ``topic`` the fault
        affects only requests that name the topic; all topics of such a request get the error.
        """
        return self._fault(api, error=error, times=times, after=after, topic=topic)

    def delay(self, api: str, seconds: float, *, times: int = 1, after: int = 0, topic: str | None = None) -> Fault:
        """Handle the next requests of an API ``seconds`` later, by the broker's clock."""
        return self._fault(api, delay_ms=seconds * 1000, times=times, after=after, topic=topic)

    def drop(
        self, api: str, *, is_handled: bool = False, times: int = 1, after: int = 0, topic: str | None = None
    ) -> Fault:
        """Close the connections of the next requests of an API.

        With ``is_handled`` the broker handles the request first, so that only the response is lost.
        """
        return self._fault(api, drops=True, is_handled=is_handled, times=times, after=after, topic=topic)

    def clear(self) -> None:
        """Remove all faults; delayed requests are handled now."""
        self.ask("clear")

    def requests(self, api: str) -> int:
        """Return the number of requests of an API since the start or the last ``restore``."""
        return int(self.ask("requests", api=api))

    @contextlib.contextmanager
    def leader_away(self, topic: str, partition: int = 0) -> Iterator[None]:
        """Leave a partition without a leader inside ``with``; after it the broker leads in a new leader epoch. A
        ``snapshot`` or ``restore`` inside ends it, too.
        """
        self.ask("leader", topic=topic, partition=partition, is_away=True)
        try:
            yield
        finally:
            self.ask("leader", topic=topic, partition=partition, is_away=False)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let the disk be full inside ``with``. A ``snapshot`` or ``restore`` inside ends it, too."""
        self.ask("disk", is_full=True)
        try:
            yield
        finally:
            self.ask("disk", is_full=False)

    # ---- state

    def snapshot(self) -> Snapshot:
        """Save the whole state: topics, records, offsets, configs, users, and the clock. Clients are disconnected.

        The broker is restarted: all faults are removed, and ``full_disk`` and ``leader_away`` end.
        """
        return Snapshot(int(self.ask("snapshot")))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a saved state, without faults. Clients are disconnected; groups have the members of that state."""
        self.ask("restore", snapshot=snapshot.number)

    # ---- the socket

    def ask(self, command: str, **words: object) -> Any:
        """Send one command to the broker and return its result."""
        text = json.dumps({"command": command, **words}).encode()
        if len(text) > MAX_COMMAND_BYTES:
            raise LaboratoryError(f"{command}: {len(text)} bytes; a command has at most {MAX_COMMAND_BYTES}")
        try:
            self._connection.sendall(text + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise LaboratoryError(f"the broker does not answer: {error}") from error
        if not line:
            raise LaboratoryError("the broker has ended")
        answer = decode_json(line)
        if "error" in answer:
            raise LaboratoryError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Close the connection; the broker keeps running."""
        self._lines.close()
        self._connection.close()

    def _fault(self, api: str, **words: object) -> Fault:
        return Fault(self, int(self.ask("fault", api=api, **words)))
