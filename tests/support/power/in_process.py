"""The recorded client of the power-loss tests, with the parts of a broker in the test's own thread.

The test runs the broker's event loop turn by turn. So a test can let any single call of the file system fail, and knows
during which request it failed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.support.power.recording import RETRIABLE, Asker
from tests.support.power.story import Story, story_of
from tests.support.power.trace import read_trace
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.test_data_path import Wire
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.requests.route import Pending
from tidelog.protocol.schema.fields import Message

_Response = TypeVar("_Response", bound=Message)
MAX_TURNS = 200
TURN_MS = 50
TRIES = 8


class InProcessClient:
    """A client that sends requests to a broker's parts, as :class:`tidelog.client.Client` does to a broker."""

    def __init__(self, data: DataBroker) -> None:
        self._data = data
        self._wire = Wire(data)
        coordinators_of(data.broker).start()

    def send(self, request: Message, response_type: type[_Response], version: int) -> _Response:
        """Send a request and return the response. Raises AssertionError if there is none after MAX_TURNS turns."""
        sent: list[Any] = []
        answer = self._wire.send(request, version)
        if isinstance(answer, Pending):
            answer.on_answer(sent.append)
        else:
            sent.append(answer)
        self._turn(lambda: bool(sent))
        assert sent, f"no answer to {type(request).__name__}"
        return self._wire.decoded(sent[0], response_type, version)

    def _turn(self, is_enough: Callable[[], bool]) -> None:
        """Run turns of the loop until ``is_enough``; at least one, so that the broker's other work proceeds."""
        for _ in range(MAX_TURNS):
            self._data.loop.run_soon()
            if is_enough():
                return
            self._data.loop.advance(TURN_MS)

    def close(self) -> None:
        """Do nothing: there is no connection."""


class InProcessAsker(Asker):
    """An ``Asker`` for a broker's parts, which notes requests and responses in ``trace``."""

    def __init__(self, data: DataBroker, trace: Path) -> None:
        self._trace = trace
        self._client: Any = InProcessClient(data)

    @staticmethod
    def until_answered(ask: Callable[[], int]) -> None:
        """Repeat a request up to TRIES times while the coordinator is not ready. Raises AssertionError for an error."""
        code = next((code for _ in range(TRIES) if (code := ask()) not in RETRIABLE), -1)
        assert code == 0, f"error {code}"


def story_in(trace: Path) -> Story:
    """Build the state that must survive a power loss, from the notes in a trace so far."""
    return story_of(read_trace(trace, trace.parent))
