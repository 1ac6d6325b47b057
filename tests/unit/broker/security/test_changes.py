"""Audit lines of administrators' changes, mainly if the client disconnects before its request has ended."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import AdminBroker, context_of
from tests.unit.broker.controller.test_topic_changes import Steps
from tests.unit.broker.handlers.test_acls import ANY_FILTER, create, creation
from tests.unit.broker.handlers.test_other_admin_handlers import upsert
from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.config.changes import Operation
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.loop import steps as loop_steps
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import SLICE_MS
from tidelog.broker.security.changes import TOPICS_PER_LINE, Notes, note_configs, note_line, with_lines
from tidelog.broker.security.late_lines import LateLines
from tidelog.broker.security.token_requests import change_expiry
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages import (
    alter_client_quotas,
    alter_configs,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
)
from tidelog.protocol.messages import incremental_alter_configs as incremental

NAMES = ("a", "b", "c")
SET = {"name": "flush.ms", "value": "9"}


def resources(module: Any, config: Any) -> list[Any]:
    """Build the resources of a request that sets one config of each of the topics NAMES."""
    return [
        module.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configs=[config])
        for name in NAMES
    ]


REQUESTS: dict[str, Any] = {
    "create_acls": create_acls.CreateAclsRequest(creations=[creation(f"new-{name}") for name in NAMES]),
    "delete_acls": delete_acls.DeleteAclsRequest(filters=[ANY_FILTER]),
    "alter_user_scram_credentials": alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        deletions=[], upsertions=[upsert(name) for name in NAMES]
    ),
    "alter_configs": alter_configs.AlterConfigsRequest(
        resources=resources(alter_configs, alter_configs.AlterableConfig(**SET))
    ),
    "incremental_alter_configs": incremental.IncrementalAlterConfigsRequest(
        resources=resources(incremental, incremental.AlterableConfig(**SET, config_operation=Operation.SET))
    ),
    "create_topics": create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=f"new-{name}", num_partitions=1, replication_factor=1) for name in NAMES
        ]
    ),
    "delete_topics": delete_topics.DeleteTopicsRequest(topic_names=[*NAMES]),
    "create_partitions": create_partitions.CreatePartitionsRequest(
        topics=[create_partitions.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in NAMES]
    ),
    "alter_client_quotas": alter_client_quotas.AlterClientQuotasRequest(
        entries=[
            alter_client_quotas.EntryData(
                entity=[alter_client_quotas.EntityData(entity_type="user", entity_name=name)],
                ops=[alter_client_quotas.OpData(key="request_percentage", value=1.0)],
            )
            for name in NAMES
        ]
    ),
}


def state_of(admin: AdminBroker) -> dict[object, object]:
    """Return all values that one of REQUESTS may change, by a key for each."""
    image = admin.controller.image
    known = admin.metadata.topics
    topics = {name: (topic.configs.get("flush.ms"), topic.partition_count) for name, topic in known.items()}
    parts: list[Mapping[Any, object]] = [image.acls, image.scram, image.quotas, topics]
    return {key: value for part in parts for key, value in part.items()}


def changes_and_lines(
    admin: AdminBroker, api: str, steps_done: int, caplog: pytest.LogCaptureFixture
) -> tuple[int, int, bool]:
    """Do up to so many steps of a request, then disconnect its client. Return the number of values that the request has
    changed, the number of its audit lines, and whether the steps had ended by themselves."""
    caplog.clear()
    before, syncs, is_over = state_of(admin), Steps(), False
    admin.set_listener(admin.listener, syncs, syncs.all)
    steps = importlib.import_module(f"tidelog.broker.handlers.{api}").handle(admin.broker, context_of(1), REQUESTS[api])
    for number in range(steps_done):
        try:
            waiting = next(steps)
        except StopIteration:
            is_over = True
            break
        if waiting is not None and number + 1 < steps_done:
            syncs.all()
    steps.close()
    syncs.all()
    admin.broker.late_lines.finish()
    after = state_of(admin)
    changed = sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())
    lines = [line for record in caplog.records if record.name == "tidelog.audit" for line in [record.getMessage()]]
    assert len({*lines}) == len(lines)
    return changed, len(lines), is_over


@pytest.mark.parametrize("api", sorted(REQUESTS))
def test_each_change_has_its_line_even_if_its_client_disconnects(
    tmp_path: Path, api: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client disconnects after one step, after two, and so on until the request ends before that."""
    caplog.set_level(logging.INFO, "tidelog.audit")
    max_changed, is_over = 0, False
    for steps_done in range(1, 40):
        admin = AdminBroker(tmp_path / str(steps_done), {"authorizer.class.name": STANDARD_AUTHORIZER})
        for name in NAMES:
            create_topic(admin, name, 1)
        create(admin, *map(creation, NAMES))
        changed, lines, is_over = changes_and_lines(admin, api, steps_done, caplog)
        assert lines == changed, steps_done
        max_changed = max(max_changed, changed)
        if is_over:
            break
    assert (max_changed, is_over) == (len(NAMES), True)


def test_long_names_are_complete_in_audit_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Topics of Kafka Streams and of MirrorMaker have long names, which may differ only at their end."""
    caplog.set_level(logging.INFO, "tidelog.audit")
    names = [f"{'application-' * 19}{end}" for end in ("a-changelog", "b-changelog")]
    for name in names:
        next(note_configs(context_of(1), ResourceType.TOPIC, name, ["flush.ms"]))
    assert [json.loads(line)["name"] for line in caplog.messages] == names


@pytest.mark.parametrize("fails", [False, True])
def test_a_durable_expiry_time_has_its_line_even_if_its_client_disconnects(
    caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")
    synced: Deferred[None] = Deferred()
    services = SimpleNamespace(tokens=SimpleNamespace(get=lambda: None))
    controller = SimpleNamespace(when_synced=lambda: synced)
    listener = SimpleNamespace(listener_name="S", security_protocol="SASL_SSL")
    config = SimpleNamespace(listeners=[listener])
    late_lines = LateLines(lambda turn: None, lambda: 0.0)
    broker = cast(Any, SimpleNamespace(config=config, services=services, controller=controller, late_lines=late_lines))
    new_time: Callable[..., int] = lambda *_: 4711  # noqa: E731
    steps = change_expiry(broker, context_of(1, listener_name="S"), "token renewed", new_time)
    assert next(steps) is synced
    steps.close()
    late_lines.finish()
    assert not caplog.messages
    synced.fail(KafkaStorageError()) if fails else synced.complete(None)
    late_lines.finish()
    assert [json.loads(line)["until_ms"] for line in caplog.messages] == [4711] * (not fails)


def test_lines_of_a_client_that_disconnects_are_written_in_steps(caplog: pytest.LogCaptureFixture) -> None:
    """50,000 lines at once would hold the loop for a second."""
    caplog.set_level(logging.INFO, "tidelog.audit")
    loop = ManualLoop()
    with Notes(LateLines(loop.call_soon, count(0, SLICE_MS).__next__)) as notes:
        for number in range(4):
            change: Deferred[None] = Deferred()
            change.complete(None) if number % 2 else change.fail(KafkaStorageError())
            notes.add(change, note_line("topic deleted", context_of(1), name=number))
        notes.add(deferred_value(None), chain(*(note_line("acl deleted", context_of(1), name=name) for name in (5, 7))))
    written = [len(caplog.messages)]
    while loop.soon:
        loop.run_soon()
        written.append(len(caplog.messages))
    assert written == [0, 1, 2, 3, 4, 4]
    assert [json.loads(line)["name"] for line in caplog.messages] == [1, 3, 5, 7]


MANY_TOPICS = [f"topic-{number}" for number in range(2 * TOPICS_PER_LINE + 500)]


def lines_of_offsets(steps_done: int, caplog: pytest.LogCaptureFixture) -> tuple[list[dict[str, Any]], bool]:
    """Do up to so many steps of a change of MANY_TOPICS, four fifths of which change, then disconnect the client.
    Return the audit lines, and whether the steps had ended by themselves."""
    caplog.clear()

    def change() -> loop_steps.Steps[list[str]]:
        yield None
        return MANY_TOPICS

    def changed_of(topics: list[str]) -> Iterator[str | None]:
        return (topic if number % 5 else None for number, topic in enumerate(topics))

    steps = with_lines(change(), changed_of, "share offsets changed", context_of(1), "g")
    is_over = len(list(islice(steps, steps_done))) < steps_done
    steps.close()
    return [json.loads(line) for line in caplog.messages], is_over


def test_many_topics_are_spread_over_several_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")
    lines, is_over = lines_of_offsets(10**6, caplog)
    assert is_over
    assert [len(line["topics"]) for line in lines] == [TOPICS_PER_LINE, TOPICS_PER_LINE]
    assert [topic for line in lines for topic in line["topics"]] == [
        topic for number, topic in enumerate(MANY_TOPICS) if number % 5
    ]


@pytest.mark.parametrize("steps_done", [1, 2, TOPICS_PER_LINE, 2 * TOPICS_PER_LINE])
def test_a_disconnect_while_lines_are_written_leaves_a_line_that_says_so(
    caplog: pytest.LogCaptureFixture, steps_done: int
) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")
    lines, is_over = lines_of_offsets(steps_done, caplog)
    assert not is_over
    assert [line.get("is_whole", True) for line in lines] == [True] * (steps_done * 4 // 5 // TOPICS_PER_LINE) + [False]
