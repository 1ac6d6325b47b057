"""Registration while the topic's leader changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.schema_registry.changes import Submission
from tidelog.broker.schema_registry.errors import RegistryError
from tidelog.broker.schema_registry.records import RegisteredSchema, StoredRecord, schema_record
from tidelog.broker.schema_registry.service import Registry
from tidelog.broker.schema_registry.state import State


class ReplacedTopic:
    """A topic whose records are replaced by as many others of another leader after the first ``settle``."""

    def __init__(self) -> None:
        self.states = [state_with("other"), state_with("s")]
        self.written: list[StoredRecord] = []

    async def read_state(self) -> State:
        return self.states[0]

    async def settle(self) -> State:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def write(self, records: list[StoredRecord]) -> None:
        self.written += records


def state_with(subject: str) -> State:
    state = State()
    state.replay(*schema_record(RegisteredSchema(subject, 1, 7, '"int"')))
    return state


async def test_a_schema_is_compared_with_the_versions_of_the_last_election() -> None:
    registry = Registry(cast(Any, SimpleNamespace(loop=asyncio.get_running_loop())))
    topic = ReplacedTopic()
    cast(Any, registry)._topic = topic
    try:
        with pytest.raises(RegistryError) as refused:
            await registry.register("s", Submission('"string"'))
    finally:
        registry.close()
    assert (refused.value.code, topic.written) == (409, [])


class ForeignWriter(ReplacedTopic):
    """A topic to which another program writes a version, which a reader replays while the new schema is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.states = [State()]

    def replay_foreign(self, *_: object) -> list[str]:
        if not self.states[0].changes:
            self.states[0].replay(*schema_record(RegisteredSchema("s", 1, 7, '"int"')))
        return []


async def test_a_version_that_comes_while_schemas_are_compared_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(cast(Any, SimpleNamespace(loop=asyncio.get_running_loop())))
    topic = ForeignWriter()
    cast(Any, registry)._topic = topic
    collect = registry._collect_faults

    async def collect_late(*arguments: Any) -> list[str]:
        found = await collect(*arguments)
        return found + topic.replay_foreign()

    monkeypatch.setattr(registry, "_collect_faults", collect_late)
    try:
        with pytest.raises(RegistryError) as refused:
            await registry.register("s", Submission('"string"'))
    finally:
        registry.close()
    assert (refused.value.code, topic.written) == (409, [])
