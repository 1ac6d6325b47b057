"""A broker that is registered and unfenced at real controllers without a process: its partitions are only metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from benchmarks.rivals.apache_kafka import CLUSTER_ID
from tests.support.kraft_node import HOST, wait_until
from tidelog.broker.controller.features import offered_levels
from tidelog.client import Client, ClientError
from tidelog.protocol.errors import NotControllerError
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

LONG_SESSIONS = {"broker.session.timeout.ms": "600000"}
"""Setting of the controllers: the broker sends heartbeats only until it is unfenced, and must not be fenced later."""
BROKER_ID = 50
CREATE_VERSION = 7
_ANSWER_S = 120
Answer = TypeVar("Answer")


class RegisteredBroker:
    """A broker without a process; ``controllers`` maps the ids of the controllers to their ports."""

    def __init__(self, controllers: Mapping[int, int]) -> None:
        self._controllers = controllers

    def register(self) -> None:
        """Register the broker, and send heartbeats until the controller has unfenced it."""
        features = [
            Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
            for name, (lowest, highest) in offered_levels().items()
        ]
        request = BrokerRegistrationRequest(
            broker_id=BROKER_ID, cluster_id=CLUSTER_ID, incarnation_id=b"i" * 16, features=features,
            listeners=[Listener(name="PLAINTEXT", host=HOST, port=9)], log_dirs=[b"d" * 16],
        )  # fmt: skip
        answer = self._ask(
            lambda client: client.call(request, BrokerRegistrationResponse), lambda answer: answer.error_code
        )
        beat = BrokerHeartbeatRequest(
            broker_id=BROKER_ID, broker_epoch=answer.broker_epoch, current_metadata_offset=answer.broker_epoch
        )
        wait_until(lambda: not self._beat(beat).is_fenced, "the broker is unfenced")

    def create(self, topics: Mapping[str, int]) -> None:
        """Create topics whose partitions are all on this broker; ``topics`` has the number of partitions by name."""
        listed = [
            CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics.items()
        ]
        request = CreateTopicsRequest(topics=listed, timeout_ms=_ANSWER_S * 1000)
        self._ask(
            lambda client: client.send(request, CreateTopicsResponse, CREATE_VERSION),
            lambda answer: max(topic.error_code for topic in answer.topics),
        )

    def _beat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        return self._ask(lambda client: client.call(request, BrokerHeartbeatResponse), lambda answer: answer.error_code)

    def _ask(self, ask: Callable[[Client], Answer], error_code: Callable[[Answer], int]) -> Answer:
        """Send a request to each controller until the active one answers."""
        answers: list[Answer] = []

        def is_answered() -> bool:
            for port in self._controllers.values():
                try:
                    with Client(f"{HOST}:{port}", timeout_s=_ANSWER_S) as client:
                        answer = ask(client)
                except ClientError:
                    continue
                if error_code(answer) == NotControllerError.code:
                    continue
                assert error_code(answer) == 0, answer
                answers.append(answer)
                return True
            return False

        wait_until(is_answered, "the active controller answers")
        return answers[0]
