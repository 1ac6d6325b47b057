"""Commands of a laboratory over a socket pair: one line of JSON for each command and for each answer.

``http.py`` takes the same commands from tests in other languages.

    {"command": "advance", "ms": 45000}              -> {"result": null}
    {"command": "restore", "snapshot": 7}            -> {"error": "snapshot 7 is not known"}

The broker inherits its end of the socket pair from the process that started it. When the other end closes, the broker
goes on. Commands are executed one after the other, whether they come by the socket or over HTTP. Loop thread only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Mapping
from types import NoneType
from typing import Any

from tidelog.broker.errors import StartError
from tidelog.broker.laboratory.faults import Fault
from tidelog.broker.laboratory.server import LaboratoryServer
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, error_classes
from tidelog.protocol.foreign_text import decode_json

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 65_536
"""Largest size in bytes of one command, and of a command's body over HTTP."""


class Control:
    """Executes the commands of one laboratory."""

    def __init__(self, laboratory: LaboratoryServer) -> None:
        self._laboratory = laboratory
        self._lock = asyncio.Lock()
        """Held while a command is executed."""

    async def serve(self, connection: socket.socket) -> None:
        """Answer commands until the other process closes the socket, or sends a line of more than MAX_LINE_BYTES."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer_line(line)).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            logger.info("the process that controls the laboratory closed its socket")
        except ValueError:  # of ``readline``: other ValueErrors are answered
            logger.warning("a command of the laboratory is longer than %d bytes: its socket is closed", MAX_LINE_BYTES)
        finally:
            writer.close()

    async def _answer_line(self, line: bytes) -> dict[str, object]:
        """Execute the command of one line. Returns what ``answer`` returns, also for a line that is not JSON."""
        try:
            command = decode_json(line)
        except ValueError as error:
            return {"error": f"the line is not JSON: {error}"}
        if not isinstance(command, dict):
            return {"error": "the line is not a JSON object"}
        return await self.answer(command)

    async def answer(self, command: Mapping[str, Any]) -> dict[str, object]:
        """Execute one command once those before it are done. Returns ``{"result": ...}``, or ``{"error": text}`` if it
        fails.
        """
        try:
            async with self._lock:
                return {"result": await self._do(command)}
        except (ValueError, KafkaError, StartError, OSError) as error:
            return {"error": str(error)}

    async def _do(self, command: Mapping[str, Any]) -> object:
        """Execute a command. Raises ValueError for an unknown or malformed one, KafkaError, StartError, OSError."""
        check_values(command)
        laboratory = self._laboratory
        match command:
            case {"command": "advance", "ms": int(milliseconds)}:
                await laboratory.advance(milliseconds)
            case {"command": "time"}:
                return laboratory.time.milliseconds()
            case {"command": "leader", "topic": str(topic), "partition": int(number), "is_away": bool(is_away)}:
                laboratory.move_leader(topic, number, is_away=is_away)
            case {"command": "disk", "is_full": bool(is_full)}:
                laboratory.disk.is_full = is_full
            case {"command": "snapshot"}:
                return await laboratory.snapshot()
            case {"command": "restore", "snapshot": int(number)}:
                await laboratory.restore(number)
            case _:
                return self._do_with_faults(command)
        return None

    def _do_with_faults(self, command: Mapping[str, Any]) -> int | None:
        """Execute a command that sets, counts or clears faults. Raises ValueError."""
        faults = self._laboratory.faults
        match command:
            case {"command": "fault"}:
                return faults.add(parse_fault(command))
            case {"command": "met", "fault": int(number)}:
                return faults.count_met(number)
            case {"command": "requests", "api": str(api)}:
                return faults.requests[parse_api(api)]
            case {"command": "clear"}:
                faults.clear()
                return None
        raise ValueError(explain_command(command))


FIELDS = {
    "advance": "ms (a whole number)",
    "time": "none",
    "fault": "api, and at least one of error, delay_ms and drops",
    "met": "fault (a whole number)",
    "requests": "api (a text)",
    "clear": "none",
    "leader": "topic (a text), partition (a whole number), is_away (true or false)",
    "disk": "is_full (true or false)",
    "snapshot": "none",
    "restore": "snapshot (a whole number)",
}
"""The commands and the fields that each of them needs."""
WHOLE_NUMBERS = ("ms", "partition", "snapshot", "fault")
"""Fields that must be whole numbers. ``case int()`` matches true and false, too."""


def check_values(command: Mapping[str, Any]) -> None:
    """Raise ValueError for a list or an object as a value, and for true or false in place of a whole number."""
    for name, value in command.items():
        if isinstance(value, list | dict):
            raise ValueError(f"{name}: expected a text, a number, true, false or null")
    if any(isinstance(command.get(name), bool) for name in WHOLE_NUMBERS):
        raise ValueError(explain_command(command))


def explain_command(command: Mapping[str, Any]) -> str:
    """Explain what is wrong with a command: its name, or its fields."""
    name = command.get("command")
    if not isinstance(name, str) or name not in FIELDS:
        return f"{name!r} is not a command of a laboratory; the commands are {', '.join(FIELDS)}"
    return f"{name}: expected the fields {FIELDS[name]}"


def parse_fault(command: Mapping[str, Any]) -> Fault:
    """Return the fault that a command describes. Raises ValueError."""
    check_fault(command)
    error, delay_ms, drops = command.get("error"), command.get("delay_ms", 0), command.get("drops", False)
    if not (error or delay_ms > 0 or drops):
        raise ValueError("a fault needs an error, a delay_ms above 0, or drops: true")
    return Fault(
        api_key=parse_api(str(command.get("api"))),
        times=command.get("times", 1),
        after=command.get("after", 0),
        topic=command.get("topic"),
        error=parse_error(error) if error else None,
        delay_ms=delay_ms,
        drops=drops,
        is_handled=command.get("is_handled", False),
    )


FAULT_TYPES: dict[str, tuple[type, ...]] = {
    "api": (str,), "error": (str, NoneType), "topic": (str, NoneType), "times": (int,), "after": (int,),
    "delay_ms": (int, float), "drops": (bool,), "is_handled": (bool,), "command": (str,),
}  # fmt: skip
"""Fields of the command ``fault``, each with the types of its value."""
MIN_VALUES = {"times": 1}
"""Smallest values of numbers that may not be 0."""
MAX_VALUE = 2**63 - 1
"""Largest value of a number: JSON has whole numbers that are too large for a float, and timers count in floats."""


def check_fault(command: Mapping[str, Any]) -> None:
    """Raise ValueError for a field that a fault does not have, and for a value of a wrong type or size. Without this
    check, such a value would fail the requests that are later compared with the fault or delayed by it.
    """
    for name, value in command.items():
        types = FAULT_TYPES.get(name)
        if types is None:
            raise ValueError(f"{name!r} is not a field of a fault; its fields are {', '.join(FAULT_TYPES)}")
        if type(value) not in types:
            raise ValueError(f"{name}: expected {' or '.join(one.__name__ for one in types)}, not {value!r}")
        smallest = MIN_VALUES.get(name, 0)
        if isinstance(value, int | float) and not smallest <= value <= MAX_VALUE:
            raise ValueError(f"{name}: expected a number from {smallest} to {MAX_VALUE}, not {value!r}")


def parse_api(name: str) -> ApiKey:
    """Return the API with a name such as ``OffsetCommit`` or ``OFFSET_COMMIT``. Raises ValueError."""
    wanted = name.replace("_", "").lower()
    for api in ApiKey:
        if api.name.replace("_", "").lower() == wanted:
            return api
    raise ValueError(f"{name!r} is not an API of Kafka; examples are Produce, Fetch and OffsetCommit")


def parse_error(name: str) -> type[KafkaError]:
    """Return the class of an error by Kafka's name, such as ``NOT_LEADER_OR_FOLLOWER``. Raises ValueError."""
    wanted = name.replace("_", "").lower().removesuffix("exception")
    for error in error_classes():
        if error.__name__.lower().removesuffix("error") == wanted.removesuffix("error"):
            return error
    raise ValueError(f"{name!r} is not an error of Kafka; an example is NOT_LEADER_OR_FOLLOWER")
