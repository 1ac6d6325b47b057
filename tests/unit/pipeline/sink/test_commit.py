"""Publishing a staged batch: what an error says about the outcome. The rest runs with real brokers, in tests/spark."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.client import ClientError
from tidelog.pipeline.sink import commit
from tidelog.pipeline.sink.commit import Publication, PublishError, publish
from tidelog.protocol.errors import ProducerFencedError, UnknownTopicOrPartitionError

LOST = ClientError("the connection was closed")
STEPS = ("_start_producer", "_read_published", "_produce", "_commit_batch_id", "_end")


@pytest.mark.parametrize(
    ("attempts", "is_unknown"),
    [
        ([("_end", LOST)], True),
        ([("_end", LOST), ("_start_producer", LOST)], True),
        ([("_end", LOST), ("_read_published", LOST)], True),
        ([("_end", LOST), ("_produce", UnknownTopicOrPartitionError())], False),
        ([("_end", ProducerFencedError())], False),
        ([("_produce", LOST)], False),
        ([("_start_producer", LOST)], False),
    ],
)
def test_an_error_says_whether_the_batch_may_have_been_published(
    attempts: list[tuple[str, Exception]], is_unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may have written the commit though its answer was lost: new ids would publish the rows twice."""
    left = list(attempts)
    coordinator: Any = SimpleNamespace(coordinator=lambda *_: None)

    def step_of(name: str) -> Any:
        def step(_: object, **options: bool) -> int:
            if left and left[0][0] == name and options.get("committed", True):
                raise left.pop(0)[1]
            return -1

        return step

    monkeypatch.setattr(commit, "Cluster", lambda *_: nullcontext(coordinator))
    monkeypatch.setattr("tidelog.pipeline.sink.commit.time.sleep", lambda _: None)
    monkeypatch.setattr(commit, "is_passing", lambda _: bool(left))
    for name in STEPS:
        monkeypatch.setattr(commit._Transaction, name, step_of(name))
    options: Any = SimpleNamespace(
        delivery_timeout_ms=60_000, request_timeout_ms=1_000, bootstrap="b", security=None, transaction_timeout_ms=1
    )
    files: Any = (SimpleNamespace(batches=[1]),)
    with pytest.raises(PublishError) as raised:
        publish(options, Publication("w", 1, files))
    assert ("may have been published" in str(raised.value)) == is_unknown
    assert not left
