"""Sending of staged batches: what is done with the responses in flight when a connection is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidelog.client import ClientError
from tidelog.pipeline.sink.produce import MAX_IN_FLIGHT, Producer, produce, queue_batches
from tidelog.pipeline.sink.staging import StagedFile, StagingFile, TaskIdentity
from tidelog.protocol.errors import SaslAuthenticationFailedError
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.record.record_batch import Record, build_batch


class BrokenClient:
    """A connection that is lost with a request, or with a response that cannot be decoded."""

    def __init__(self, requests: int) -> None:
        self.is_broken = False
        self._requests = requests

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {ProduceRequest.API_KEY: (3, 11)}

    def post(self, request: Any, version: int) -> None:
        self._requests -= 1
        if self._requests < 0:
            self.is_broken = True
            raise ClientError("the connection was lost")

    def answer(self, response_type: type[ProduceResponse]) -> ProduceResponse:
        self.is_broken = True
        raise ClientError("no answer")


class RefusingCluster:
    """A cluster that refuses the login of each connection after the first."""

    def __init__(self, client: BrokenClient) -> None:
        self._client = client
        self.logins = 0

    def leader(self, topic: str, partition: int) -> tuple[str, int]:
        return "localhost", 1

    def client_for(self, address: tuple[str, int]) -> BrokenClient:
        if not self._client.is_broken:
            return self._client
        self.logins += 1
        assert self.logins < 10
        raise SaslAuthenticationFailedError


def stage(root: Path, batches: int) -> StagedFile:
    with StagingFile(root, TaskIdentity("query", 0, 0, 0)) as file:
        for _ in range(batches):
            file.append("t", 0, build_batch([Record(0, 1, b"k", b"v")]), 1)
        return file.finish()


@pytest.mark.parametrize("sent", [1, 3, MAX_IN_FLIGHT])
def test_responses_of_a_lost_connection_are_not_awaited_on_a_new_one(tmp_path: Path, sent: int) -> None:
    """With a login that was refused, the driver tried it again without an end."""
    cluster: Any = RefusingCluster(BrokenClient(sent))
    queues = queue_batches([stage(tmp_path, MAX_IN_FLIGHT + 2)])
    with pytest.raises(ClientError):
        produce(cluster, Producer("query", 1, 0, 1000), queues)
    assert cluster.logins == 0
