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
