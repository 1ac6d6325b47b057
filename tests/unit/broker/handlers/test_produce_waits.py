"""Produce requests that wait until their records are committed."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.broker.handlers import produce
from tidelog.broker.loop.deferred import Deferred
from tidelog.log.records.work_budget import NO_BUDGET
from tidelog.protocol.errors import KafkaStorageError, UnknownServerError
from tidelog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse


def test_a_fault_in_the_making_of_the_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leaders that an error asks for cannot be named: the client does not wait without end."""

    def fail(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(produce, "_with_leaders", fail)
    progress = produce.Progress(NO_BUDGET)
    waits: list[Deferred[None]] = [Deferred(), Deferred()]
    progress.waits = [(PartitionProduceResponse(index=index), wait) for index, wait in enumerate(waits)]
    nothing: Any = None
    answer = produce._when_committed(nothing, nothing, ProduceResponse(), progress)
    waits[0].fail(KafkaStorageError())
    assert not answer.done
    waits[1].complete(None)
    with pytest.raises(UnknownServerError):
        answer.result()
