"""Topics that a member lets the controllers create because a client named them, and their audit lines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.topic_changes import NewTopic
from tidelog.broker.member import topics
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.topics import TopicCreation
from tidelog.protocol.errors import NotControllerError, PolicyViolationError, TopicAlreadyExistsError
from tidelog.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse

GONE = -99


class Controllers:
    """Active controllers that answer one request after the other with these error codes; GONE: not at all."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)
        self.asked: list[str] = []

    async def ask(self, address: object, request: CreateTopicsRequest, _: object) -> CreateTopicsResponse:
        (topic,) = request.topics
        self.asked.append(topic.name)
        code = self._codes.pop(0)
        if code == GONE:
            raise ChannelError("gone")
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name, error_code=code)])


def create(controllers: Controllers, *names: str) -> list[str]:
    """Let the topics be created, once for each time they are named; return those whose creation was logged."""
    logged: list[str] = []

    async def run() -> None:
        tasks: list[asyncio.Task[None]] = []

        def start(work: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.create_task(work))

        quorum: Any = SimpleNamespace(address=None)
        creation = TopicCreation(BrokerConfig({}), controllers, quorum, start)  # type: ignore[arg-type]
        for name in names:
            creation.create(NewTopic(name), lambda name=name: logged.append(name))  # type: ignore[misc]
        await asyncio.gather(*tasks)

    asyncio.run(run())
    return logged


@pytest.mark.parametrize(
    ("codes", "logged"),
    [
        ((0,), ["orders"]),
        ((NotControllerError.code, GONE, 0), ["orders"]),
        ((TopicAlreadyExistsError.code,), []),
        ((PolicyViolationError.code,), []),
    ],
)
def test_a_creation_has_its_audit_line_once_a_controller_has_made_it(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], logged: list[str]
) -> None:
    monkeypatch.setattr(topics, "RETRY_S", 0)
    controllers = Controllers(*codes)
    assert create(controllers, "orders") == logged
    assert controllers.asked == ["orders"] * len(codes)


def test_a_topic_named_twice_is_created_and_logged_once() -> None:
    controllers = Controllers(0, 0)
    assert create(controllers, "orders", "orders", "bills") == ["orders", "bills"]
    assert controllers.asked == ["orders", "bills"]
