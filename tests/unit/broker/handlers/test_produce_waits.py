"""Produce requests that wait until their records are committed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.replicated import ReplicatedBroker
from tests.unit.broker.admin_broker import context_of
from tests.unit.broker.data_broker import batch
from tidelog.broker.handlers import produce
from tidelog.broker.loop.deferred import Acknowledgement, Deferred
from tidelog.log.records.work_budget import NO_BUDGET
from tidelog.protocol.errors import KafkaError, KafkaStorageError, NotLeaderOrFollowerError, UnknownServerError
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.record.record_batch import BatchOptions


def test_an_error_while_the_answer_is_built_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leaders that an error asks for cannot be named: the client does not wait without end."""

    def fail(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(produce, "_with_leaders", fail)
    progress = produce.Progress(NO_BUDGET)
    waits: list[Deferred[None]] = [Deferred(), Deferred()]
    progress.waits = [(PartitionProduceResponse(index=index), wait) for index, wait in enumerate(waits)]
    nothing: Any = None
    answer = produce._when_committed(nothing, context_of(13), ProduceResponse(), progress)
    waits[0].fail(KafkaStorageError())
    assert not answer.done
    waits[1].complete(None)
    with pytest.raises(UnknownServerError):
        answer.result()


@pytest.mark.parametrize("asks_coordinator", [False, True])
def test_the_next_request_may_be_carried_out_unless_a_coordinator_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks_coordinator: bool
) -> None:
    """An answer that waits for followers alone lets the connection's next records into the log; a transaction that its
    coordinator may still refuse does not."""
    replicated = ReplicatedBroker(tmp_path)
    wait: Deferred[None] = Deferred()
    monkeypatch.setattr(produce, "_check_transaction", lambda *_: wait if asks_coordinator else None)
    options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    data = PartitionProduceData(index=0, records=memoryview(batch(b"value", options=options)))
    request = ProduceRequest(
        transactional_id="t", acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    answer: Any = produce.handle_one(replicated.broker, replicated.context(12), request)
    assert isinstance(answer, Acknowledgement) is not asks_coordinator
    assert replicated.partition.log_end_offset == 1
    assert data.records is None, "a connection's buffer is kept by it"
    replicated.fetch(2, 1)
    replicated.fetch(3, 1)
    assert answer.done is not asks_coordinator
    replicated.close()


@pytest.mark.parametrize(("version", "error"), [(3, NotLeaderOrFollowerError), (4, KafkaStorageError)])
def test_a_sync_that_fails_while_the_answer_waits_has_a_code_that_old_clients_retry(
    version: int, error: type[KafkaError]
) -> None:
    progress, wait = produce.Progress(NO_BUDGET), Deferred[None]()
    answer = PartitionProduceResponse(index=0)
    progress.waits = [(answer, wait)]
    broker: Any = SimpleNamespace(peers=None)
    produce._when_committed(broker, context_of(version), ProduceResponse(), progress)
    wait.fail(KafkaStorageError())
    assert (answer.error_code, answer.base_offset) == (error.code, -1)
